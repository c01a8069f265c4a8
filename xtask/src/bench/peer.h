// Helpers shared by the benchmarks' libzmq peers.
#include <stdio.h>
#include <stdlib.h>
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
