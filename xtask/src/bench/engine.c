// The libzmq peers of `cargo xtask bench attach`, which look like a scheduler and a tokenizer to a probe on libzmq.
//   send EP FILE  PUSH, connects, prints READY. For each line "FRAMES RATE" on stdin, sends FRAMES frames of the file's requests at
//                 RATE per second, and prints "FRAMES TOKENS BEGUN ENDED SECONDS": tokens sent, requests begun and ended.
//   recv EP       PULL, binds, prints READY. Receives like pyzmq: poll, then RCVTIMEO and receives until the queue is empty. For each
//                 line on stdin, prints the number of received frames.
// Both exit at the end of stdin.
//
// The file holds two frames for each group of requests: a middle one and a final one. Each frame has its size, its number of requests
// n, n offsets of the first four letters of the request ids, n offsets of the token counts (one byte each), and the frame's bytes. All
// numbers have 32 bits. Every sent frame adds one token to each request of its group.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "peer.h"

enum { MOST_GROUPS = 64, LONGEST = 250, RCVTIMEO_OPTION = 27 };

struct frame {
    uint32_t size, rids, *rid_at, *tokens_at;
    char *bytes;
};

static struct frame frames[MOST_GROUPS][2];

static void *read_all(FILE *file, size_t bytes) {
    void *room = malloc(bytes);
    if (!room || fread(room, 1, bytes, file) != bytes) {
        fprintf(stderr, "the file of frames is truncated\n");
        exit(1);
    }
    return room;
}

// Returns the number of groups in the file.
static int load(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    int count = 0;
    for (uint32_t head[2]; count < 2 * MOST_GROUPS && fread(head, sizeof head, 1, file) == 1; count++) {
        struct frame *f = &frames[count / 2][count % 2];
        f->size = head[0], f->rids = head[1];
        f->rid_at = read_all(file, f->rids * sizeof(uint32_t));
        f->tokens_at = read_all(file, f->rids * sizeof(uint32_t));
        f->bytes = read_all(file, f->size);
    }
    fclose(file);
    return count / 2;
}

static void send_all(void *context, const char *endpoint, const char *path) {
    int groups = load(path);
    void *push = zmq_socket(context, ZMQ_PUSH);
    int unlimited = 0, linger = 0;
    zmq_setsockopt(push, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    zmq_setsockopt(push, ZMQ_LINGER, &linger, sizeof linger);
    check(zmq_connect(push, endpoint) != 0, endpoint);
    printf("READY\n");
    fflush(stdout);
    long count, step[MOST_GROUPS] = {0};
    double rate;
    for (long next = 0; scanf("%ld %lf", &count, &rate) == 2;) {
        long tokens = 0, begun = 0, ended = 0;
        double start = seconds();
        for (long i = 0; i < count; i++, next++) {
            double early = start + i / rate - seconds();
            if (early > 0)
                nanosleep(&(struct timespec){(time_t)early, (long)((early - (time_t)early) * 1e9)}, NULL);
            // Make the groups end at different times.
            int group = next % groups, life = LONGEST - 5 * (group % 16);
            long generation = step[group] / life;
            int token = step[group]++ % life + 1;
            struct frame *f = &frames[group][token == life];
            zmq_msg_t message;
            check(zmq_msg_init_size(&message, f->size) != 0, "zmq_msg_init_size");
            char *bytes = zmq_msg_data(&message), name[5];
            memcpy(bytes, f->bytes, f->size);
            snprintf(name, sizeof name, "%04lx", generation & 0xffff);
            for (uint32_t n = 0; n < f->rids; n++) {
                memcpy(bytes + f->rid_at[n], name, 4);
                bytes[f->tokens_at[n]] = (char)token;
            }
            check(zmq_msg_send(&message, push, 0) < 0, "zmq_msg_send");
            tokens += f->rids;
            begun += token == 1 ? f->rids : 0;
            ended += token == life ? f->rids : 0;
        }
        printf("%ld %ld %ld %ld %.6f\n", count, tokens, begun, ended, seconds() - start);
        fflush(stdout);
    }
    zmq_close(push);
}

static void receive_all(void *context, const char *endpoint) {
    void *pull = zmq_socket(context, ZMQ_PULL);
    int unlimited = 0;
    zmq_setsockopt(pull, ZMQ_RCVHWM, &unlimited, sizeof unlimited);
    check(zmq_bind(pull, endpoint) != 0, endpoint);
    printf("READY\n");
    fflush(stdout);
    zmq_pollitem_t items[] = {{.socket = pull, .events = ZMQ_POLLIN}, {.fd = 0, .events = ZMQ_POLLIN}};
    zmq_msg_t message;
    zmq_msg_init(&message);
    for (long received = 0;;) {
        zmq_poll(items, 2, -1);
        for (int timeout; items[0].revents; received++) {
            size_t size = sizeof timeout;
            zmq_getsockopt(pull, RCVTIMEO_OPTION, &timeout, &size);
            if (zmq_msg_recv(&message, pull, ZMQ_DONTWAIT) < 0)
                break;
        }
        if (items[1].revents) {
            char line[64];
            if (read(0, line, sizeof line) <= 0)
                break;
            printf("%ld\n", received);
            fflush(stdout);
        }
    }
    zmq_close(pull);
}

int main(int count, char **words) {
    void *context = zmq_ctx_new();
    if (count == 4 && !strcmp(words[1], "send")) {
        send_all(context, words[2], words[3]);
    } else if (count == 3 && !strcmp(words[1], "recv")) {
        receive_all(context, words[2]);
    } else {
        fprintf(stderr, "usage: send EP FILE | recv EP\n");
        return 2;
    }
    zmq_ctx_term(context);
    return 0;
}
