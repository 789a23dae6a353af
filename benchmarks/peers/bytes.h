/* What backend.c and load.c share: bytes that grow, and the clock that Python calls monotonic. */
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct { char *at; size_t len, cap; } Bytes;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void put(Bytes *b, const char *data, size_t n) {
    if (b->len + n + 1 > b->cap) {
        b->cap = (b->len + n + 1) * 2;
        b->at = realloc(b->at, b->cap);
    }
    memcpy(b->at + b->len, data, n);
    b->len += n;
    b->at[b->len] = 0;
}
