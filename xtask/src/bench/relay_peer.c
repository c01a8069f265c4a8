// The libzmq peers of `cargo xtask bench relay`: send, recv, proxy.
//   send EP FILE COUNT RATE  PUSH, connects: the file's bytes as a message, COUNT times, RATE a second (0: as it goes)
//   recv EP SIZE COUNT       PULL, binds: prints messages per second between the first and the last
//   proxy FRONT BACK         zmq_proxy: PULL bound to FRONT, PUSH connected to BACK
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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
    } else {
        fprintf(stderr, "usage: send EP FILE COUNT RATE | recv EP SIZE COUNT | proxy FRONT BACK\n");
        return 2;
    }
    return 0;
}
