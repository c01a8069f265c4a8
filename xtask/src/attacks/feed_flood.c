// Opens connections to a port and keeps the last KEEP of them. usage: flood PORT SECONDS KEEP PAUSE_US
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
  if (argc != 5) return 2;
  int port = atoi(argv[1]), seconds = atoi(argv[2]), keep = atoi(argv[3]), pause_us = atoi(argv[4]);
  int *held = calloc(keep, sizeof *held);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  long made = 0;
  for (time_t end = time(0) + seconds; time(0) < end; made++) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(fd, (void *)&to, sizeof to);
    if (held[made % keep]) close(held[made % keep]);
    held[made % keep] = fd;
    if (pause_us) usleep(pause_us);
  }
  printf("flood: %ld connections\n", made);
}
