// The libzmq peers of `cargo xtask bench relay`.
//   send EP FILE COUNT RATE STAMPS CONNECTIONS
//                                   PUSH sockets, connect: send the file's bytes as a message, COUNT times in total at RATE per second
//                                   (0: full speed), round-robin
//   recv EP SIZE COUNT STAMPS       PULL, binds: prints messages per second between the first and the last, and the median and
//                                   the 99th percentile of their latency in microseconds; STAMPS is a file of COUNT doubles
//   press EP FILE CONNECTIONS MOST  CONNECTIONS PUSH sockets with a high-water mark of 1: prints the number of accepted messages once
//                                   none was accepted for a second, or at MOST; then waits
//   stuck EP                        PULL with a high-water mark of 1, binds, never receives
//   proxy FRONT BACK                zmq_proxy: PULL bound to FRONT, PUSH connected to BACK
//   copy FRONT BACK                 only reads and writes, 128 KiB at a time: the minimum work of any relay in user space
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "peer.h"

// Send time of each message, in memory shared by both peers.
static double *stamps(const char *path, long count) {
    int file = open(path, O_RDWR);
    check(file < 0, path);
    void *shared = mmap(NULL, count * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    check(shared == MAP_FAILED, path);
    close(file);
    return shared;
}

static size_t load(const char *path, char *message, size_t most) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    size_t size = fread(message, 1, most, file);
    fclose(file);
    return size;
}

static char message[5 << 20];

static void **push_sockets(void *context, const char *endpoint, int connections, void *(*make)(void *, int)) {
    void **sockets = calloc(connections, sizeof(void *));
    check(!sockets, "calloc");
    for (int i = 0; i < connections; i++) {
        sockets[i] = make(context, ZMQ_PUSH);
        check(!sockets[i] || zmq_connect(sockets[i], endpoint) != 0, endpoint);
    }
    return sockets;
}

static void send_all(void *context, const char *endpoint, const char *path, long count, double rate, double *sent, int connections) {
    size_t size = load(path, message, sizeof message);
    void **push = push_sockets(context, endpoint, connections, zmq_socket);
    double start = seconds();
    for (long i = 0; i < count; i++) {
        double early = rate > 0 ? start + i / rate - seconds() : 0;
        if (early > 0)
            nanosleep(&(struct timespec){(time_t)early, (long)((early - (time_t)early) * 1e9)}, NULL);
        sent[i] = seconds();
        check(zmq_send(push[i % connections], message, size, 0) < 0, "zmq_send");
    }
    for (int i = 0; i < connections; i++)
        zmq_close(push[i]);
    zmq_ctx_term(context);
}

static int longer(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void receive_all(void *context, const char *endpoint, size_t size, long count, double *sent) {
    void *pull = zmq_socket(context, ZMQ_PULL);
    int patience_ms = 20000;
    zmq_setsockopt(pull, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    check(zmq_bind(pull, endpoint) != 0, endpoint);
    double *under_way = malloc(count * sizeof(double));
    check(!under_way, "malloc");
    printf("READY\n");
    fflush(stdout);
    zmq_msg_t message;
    zmq_msg_init(&message);
    double first = 0, now = 0;
    for (long i = 0; i < count; i++) {
        check(zmq_msg_recv(&message, pull, 0) < 0, "zmq_msg_recv");
        now = seconds();
        under_way[i] = now - sent[i];
        if (zmq_msg_size(&message) != size) {
            fprintf(stderr, "message %ld has %zu bytes, not %zu\n", i, zmq_msg_size(&message), size);
            exit(1);
        }
        if (i == 0)
            first = now;
    }
    qsort(under_way, count, sizeof(double), longer);
    printf("%.1f %.2f %.2f\n", (count - 1) / (now - first), under_way[count / 2] * 1e6, under_way[count * 99 / 100] * 1e6);
}

static void *one_message(void *context, int kind) {
    void *socket = zmq_socket(context, kind);
    int one = 1, none = 0;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    return socket;
}

static void press(void *context, const char *endpoint, const char *path, int connections, long most) {
    size_t size = load(path, message, sizeof message);
    void **sockets = push_sockets(context, endpoint, connections, one_message);
    long received = 0;
    for (double last = seconds(); seconds() - last < 1 && received < most;) {
        for (int i = 0; i < connections && received < most; i++) {
            if (zmq_send(sockets[i], message, size, ZMQ_DONTWAIT) >= 0) {
                received++;
                last = seconds();
            }
        }
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    printf("%ld\n", received);
    fflush(stdout);
    pause();
}

static void proxy(void *context, const char *from, const char *to) {
    void *front = zmq_socket(context, ZMQ_PULL), *back = zmq_socket(context, ZMQ_PUSH);
    check(zmq_bind(front, from) != 0, from);
    check(zmq_connect(back, to) != 0, to);
    printf("READY\n");
    fflush(stdout);
    zmq_proxy(front, back, NULL);
}

struct direction {
    int from, to;
};

static void *carry(void *given) {
    struct direction *one = given;
    enum { MOST = 128 << 10 };
    static __thread char bytes[MOST];
    for (ssize_t got; (got = read(one->from, bytes, MOST)) > 0;)
        for (ssize_t done = 0, wrote; done < got; done += wrote)
            if ((wrote = write(one->to, bytes + done, got - done)) <= 0)
                return NULL;
    shutdown(one->to, SHUT_WR);
    // Stay alive, so that the CPU time can be read.
    pause();
    return NULL;
}

static int local(const char *endpoint, int listens) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", endpoint + strlen("ipc://"));
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    check(listens ? bind(sock, (void *)&at, sizeof at) || listen(sock, 128) : connect(sock, (void *)&at, sizeof at), endpoint);
    return sock;
}

static void relay(const char *front, const char *back) {
    int listener = local(front, 1);
    printf("READY\n");
    fflush(stdout);
    for (int left; (left = accept(listener, NULL, NULL)) >= 0;) {
        struct direction *both = calloc(2, sizeof *both);
        check(!both, "calloc");
        int right = local(back, 0);
        both[0] = (struct direction){left, right};
        both[1] = (struct direction){right, left};
        pthread_t thread;
        for (int i = 0; i < 2; i++)
            check(pthread_create(&thread, NULL, carry, &both[i]), "pthread_create");
    }
}

int main(int count, char **words) {
    const char *role = count > 1 ? words[1] : "";
    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 2000);
    if (count == 8 && !strcmp(role, "send")) {
        long messages = atol(words[4]);
        send_all(context, words[2], words[3], messages, atof(words[5]), stamps(words[6], messages), atoi(words[7]));
    } else if (count == 6 && !strcmp(role, "recv")) {
        long messages = atol(words[4]);
        receive_all(context, words[2], (size_t)atol(words[3]), messages, stamps(words[5], messages));
    } else if (count == 6 && !strcmp(role, "press")) {
        press(context, words[2], words[3], atoi(words[4]), atol(words[5]));
    } else if (count == 3 && !strcmp(role, "stuck")) {
        check(zmq_bind(one_message(context, ZMQ_PULL), words[2]) != 0, words[2]);
        printf("READY\n");
        fflush(stdout);
        pause();
    } else if (count == 4 && !strcmp(role, "proxy")) {
        proxy(context, words[2], words[3]);
    } else if (count == 4 && !strcmp(role, "copy")) {
        relay(words[2], words[3]);
    } else {
        fprintf(stderr, "usage: see the comment at the top of relay.c\n");
        return 2;
    }
    return 0;
}
