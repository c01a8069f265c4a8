// The libzmq peers of `cargo xtask bench relay`: send, recv, proxy.
//   send EP FILE COUNT RATE  PUSH, connects: the file's bytes as a message, COUNT times, RATE a second (0: as it goes)
//   recv EP SIZE COUNT       PULL, binds: prints messages per second between the first and the last
//   proxy FRONT BACK         zmq_proxy: PULL bound to FRONT, PUSH connected to BACK
//   copy FRONT BACK          read and write, 128 KiB at a time, and nothing else: the least a relay can do that has the bytes
//   splice FRONT BACK        the same bytes by splice(2), never seen
//   tee FRONT BACK           splice(2), and a copy of them by tee(2) and read
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

static void check(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
        exit(1);
    }
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void send_all(void *context, const char *endpoint, const char *path, long count, double rate) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    static char message[4 << 20];
    size_t size = fread(message, 1, sizeof message, file);
    fclose(file);
    void *push = zmq_socket(context, ZMQ_PUSH);
    check(zmq_connect(push, endpoint) != 0, endpoint);
    double start = seconds();
    for (long i = 0; i < count; i++) {
        double early = rate > 0 ? start + i / rate - seconds() : 0;
        if (early > 0)
            nanosleep(&(struct timespec){(time_t)early, (long)((early - (time_t)early) * 1e9)}, NULL);
        check(zmq_send(push, message, size, 0) < 0, "zmq_send");
    }
    zmq_close(push);
    zmq_ctx_term(context);
}

static void receive_all(void *context, const char *endpoint, size_t size, long count) {
    void *pull = zmq_socket(context, ZMQ_PULL);
    int patience_ms = 20000;
    zmq_setsockopt(pull, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    check(zmq_bind(pull, endpoint) != 0, endpoint);
    printf("READY\n");
    fflush(stdout);
    zmq_msg_t message;
    zmq_msg_init(&message);
    double first = 0;
    for (long i = 0; i < count; i++) {
        check(zmq_msg_recv(&message, pull, 0) < 0, "zmq_msg_recv");
        if (zmq_msg_size(&message) != size) {
            fprintf(stderr, "message %ld has %zu bytes, not %zu\n", i, zmq_msg_size(&message), size);
            exit(1);
        }
        if (i == 0)
            first = seconds();
    }
    printf("%.1f\n", (count - 1) / (seconds() - first));
}

struct direction {
    int from, to;
    const char *way;
};

static void *carry(void *given) {
    struct direction *one = given;
    enum { MOST = 128 << 10 };
    static __thread char bytes[MOST];
    int there[2], beside[2];
    check(pipe(there) || pipe(beside), "pipe");
    check(fcntl(there[0], F_SETPIPE_SZ, 1 << 20) < 0 || fcntl(beside[0], F_SETPIPE_SZ, 1 << 20) < 0, "F_SETPIPE_SZ");
    int copy = !strcmp(one->way, "copy"), tees = !strcmp(one->way, "tee");
    for (;;) {
        ssize_t got = copy ? read(one->from, bytes, MOST) : splice(one->from, NULL, there[1], NULL, MOST, SPLICE_F_MOVE);
        if (got <= 0)
            break;
        ssize_t seen = tees ? tee(there[0], beside[1], got, 0) : 0;
        for (ssize_t done = 0, wrote; done < got; done += wrote) {
            wrote = copy ? write(one->to, bytes + done, got - done)
                         : splice(there[0], NULL, one->to, NULL, got - done, SPLICE_F_MOVE);
            if (wrote <= 0)
                return NULL;
        }
        for (ssize_t looked; seen > 0; seen -= looked)
            if ((looked = read(beside[0], bytes, MOST)) <= 0)
                return NULL;
    }
    shutdown(one->to, SHUT_WR);
    return NULL;
}

static int local(const char *endpoint, int listens) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", endpoint + strlen("ipc://"));
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    check(listens ? bind(sock, (void *)&at, sizeof at) || listen(sock, 1) : connect(sock, (void *)&at, sizeof at), endpoint);
    return sock;
}

static void relay(const char *way, const char *front, const char *back) {
    int listener = local(front, 1);
    printf("READY\n");
    fflush(stdout);
    int left = accept(listener, NULL, NULL), right = local(back, 0);
    struct direction there = {left, right, way}, back_again = {right, left, way};
    pthread_t other;
    check(pthread_create(&other, NULL, carry, &back_again), "pthread_create");
    carry(&there);
    // Stays, so that its CPU time can still be read.
    pause();
}

int main(int count, char **words) {
    void *context = zmq_ctx_new();
    if (count == 6 && !strcmp(words[1], "send")) {
        send_all(context, words[2], words[3], atol(words[4]), atof(words[5]));
    } else if (count == 5 && !strcmp(words[1], "recv")) {
        receive_all(context, words[2], (size_t)atol(words[3]), atol(words[4]));
    } else if (count == 4 && !strcmp(words[1], "proxy")) {
        void *front = zmq_socket(context, ZMQ_PULL), *back = zmq_socket(context, ZMQ_PUSH);
        check(zmq_bind(front, words[2]) != 0, words[2]);
        check(zmq_connect(back, words[3]) != 0, words[3]);
        printf("READY\n");
        fflush(stdout);
        zmq_proxy(front, back, NULL);
    } else if (count == 4 && (!strcmp(words[1], "copy") || !strcmp(words[1], "splice") || !strcmp(words[1], "tee"))) {
        relay(words[1], words[2], words[3]);
    } else {
        fprintf(stderr, "usage: send EP FILE COUNT RATE | recv EP SIZE COUNT | proxy|copy|splice|tee FRONT BACK\n");
        return 2;
    }
    return 0;
}
