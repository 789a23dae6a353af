/* A heap of due times; the next is heap[0]. */
#pragma once
#include <stdint.h>
#include <stdlib.h>

typedef struct { uint64_t ns; int at; } Due; /* at: its place in the heap, -1 outside */

static Due **heap;
static int heap_len, heap_cap;

static void heap_set(int at, Due *d) { heap[at] = d; d->at = at; }

static void heap_up(int at) {
    Due *d = heap[at];
    for (; at && heap[(at - 1) / 2]->ns > d->ns; at = (at - 1) / 2) heap_set(at, heap[(at - 1) / 2]);
    heap_set(at, d);
}

static void heap_down(int at) {
    Due *d = heap[at];
    for (int child; (child = 2 * at + 1) < heap_len; at = child) {
        if (child + 1 < heap_len && heap[child + 1]->ns < heap[child]->ns) child++;
        if (heap[child]->ns >= d->ns) break;
        heap_set(at, heap[child]);
    }
    heap_set(at, d);
}

static void wait_until(Due *d, uint64_t ns) {
    if (heap_len == heap_cap) heap = realloc(heap, (size_t)(heap_cap = heap_cap ? heap_cap * 2 : 64) * sizeof *heap);
    d->ns = ns;
    heap_set(heap_len, d);
    heap_up(heap_len++);
}

static void no_wait(Due *d) {
    if (d->at < 0) return;
    int at = d->at;
    Due *last = heap[--heap_len];
    d->at = -1;
    if (last == d) return;
    heap_set(at, last);
    heap_up(at);
    heap_down(last->at);
}
