// The process measured by `cargo xtask bench switch`: two threads on one CPU pass a byte back and forth through pipes. For each number of
// round trips on stdin, prints the CPU nanoseconds of a context switch. Exits at the end of stdin.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int ping[2], pong[2];

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static double cpu_ns(void) {
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return spent.tv_sec * 1e9 + spent.tv_nsec;
}

static void *answer(void *unused) {
    for (char byte; read(ping[0], &byte, 1) == 1;)
        check(write(pong[1], &byte, 1) != 1, "write");
    return unused;
}

static void pass(long round_trips) {
    char byte = 0;
    for (long i = 0; i < round_trips; i++)
        check(write(ping[1], &byte, 1) != 1 || read(pong[0], &byte, 1) != 1, "pipe");
}

int main(void) {
    // The last CPU; the second thread inherits it.
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &cpus);
    check(sched_setaffinity(0, sizeof cpus, &cpus), "sched_setaffinity");
    pthread_t second;
    check(pipe(ping) || pipe(pong) || pthread_create(&second, NULL, answer, NULL), "start");
    for (long round_trips; scanf("%ld", &round_trips) == 1;) {
        pass(1000);
        double begun = cpu_ns();
        pass(round_trips);
        printf("%.1f\n", (cpu_ns() - begun) / (2 * round_trips));
        fflush(stdout);
    }
    return 0;
}
