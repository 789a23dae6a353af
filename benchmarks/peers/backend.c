/* An HTTP/1.1 backend that is not the limit: one thread, epoll, one timerfd, a heap of due times.
 *
 *     backend PORTS        listens on that many loopback ports, prints them on one line, ends with its stdin
 *
 * POST (any path): a chat completion, streamed when the body says "stream":true ("max_tokens" content chunks).
 * GET /set?delay_us=&interval_us=&slots=&record=   for all ports; slots: so many at once, the others wait in here
 * GET /reset, /stats, /last_head, /last_body       of the port that is asked; times are CLOCK_MONOTONIC
 * GET /health, /v1/models, /slots, ...             what routers ask of an engine
 */
#include "bytes.h"
#include "due.h"

#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/timerfd.h>

#define MAX_PORTS 16
#define LISTENER ((uint64_t)1 << 62)
#define TIMER ((uint64_t)1 << 61)
#define STDIN_END ((uint64_t)1 << 60)

typedef struct Conn {
    Due wait; /* first, so that a Due in the heap is its Conn */
    int fd, port, busy, streaming, waiting_out;
    Bytes in, out;
    size_t head_len, body_len, used; /* of the request under way; used: its bytes in `in` */
    char *body;
    uint32_t id, seq, total;
    struct Conn *prev, *next; /* queue of those waiting for a slot */
    int queued;
} Conn;

typedef struct {
    uint64_t requests, hangups, last_hangup_ns;
    int inside, max_inside, active;
    Conn *first, *last;
    Bytes head, body;
} Port;

static Port ports[MAX_PORTS];
static int port_count, epoll_fd, timer_fd, slots, record;
static uint64_t delay_ns, interval_ns, armed, late_max_ns;
static uint32_t next_id;

static void take_requests(Conn *c);

static void arm(void) {
    uint64_t due = heap_len ? heap[0]->ns : 0;
    if (due == armed) return;
    struct itimerspec when = {.it_value = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
    armed = due;
}

/* Sending */

static void watch(Conn *c, int out) {
    if (c->waiting_out == out) return;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
    c->waiting_out = out;
}

static void flush_out(Conn *c) {
    size_t sent = 0;
    while (sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.at + sent, c->out.len - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += (size_t)n;
    }
    memmove(c->out.at, c->out.at + sent, c->out.len - sent);
    c->out.len -= sent;
    watch(c, c->out.len > 0);
}

static void say(Bytes *b, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put(b, text, (size_t)n);
}

static void respond(Conn *c, int status, const char *type, const char *body, size_t n) {
    say(&c->out, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nX-Bench-Reply: kept\r\nContent-Length: %zu\r\n\r\n", status,
        status == 200 ? "OK" : "Not Found", type, n);
    put(&c->out, body, n);
    flush_out(c);
}

static const char ANSWER[] =
    "{\"id\":\"chatcmpl-bench\", \"object\":\"chat.completion\", \"created\":1700000000, \"model\":\"bench-model\", "
    "\"choices\":[{\"index\":0, \"message\":{\"role\":\"assistant\", \"content\":\"All four tests pass. The parser "
    "now accepts a trailing comma, and \\u201cempty\\u201d lists are kept as they are.\"}, \"logprobs\":null, "
    "\"finish_reason\":\"stop\"}], \"usage\":{\"prompt_tokens\":512, \"completion_tokens\":32, \"total_tokens\":544}}";

/* Chunk framing by hand: the sizes never change. load.c knows this text, byte for byte. */
static void add_chunk(Conn *c) {
    char event[512];
    int n = snprintf(event, sizeof event,
                     "data: {\"id\":\"chatcmpl-%08u\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
                     "\"model\":\"bench-model\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"~%08u.%06u.%016llu \"},"
                     "\"finish_reason\":null}]}\n\n",
                     c->id, c->id, c->seq, (unsigned long long)now_ns());
    say(&c->out, "%x\r\n", n);
    put(&c->out, event, (size_t)n);
    put(&c->out, "\r\n", 2);
    c->seq++;
}

static void add_end(Conn *c) {
    char event[512];
    int n = snprintf(event, sizeof event,
                     "data: {\"id\":\"chatcmpl-%08u\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
                     "\"model\":\"bench-model\",\"choices\":[],\"usage\":{\"prompt_tokens\":512,"
                     "\"completion_tokens\":%u,\"total_tokens\":%u}}\n\ndata: [DONE]\n\n",
                     c->id, c->total, c->total + 512);
    say(&c->out, "%x\r\n", n);
    put(&c->out, event, (size_t)n);
    put(&c->out, "\r\n0\r\n\r\n", 7);
}

/* A request's way: queued, active, answered */

static void activate(Conn *c) {
    ports[c->port].active++;
    wait_until(&c->wait, delay_ns ? now_ns() + delay_ns : 0);
}

static void unqueue(Conn *c) {
    Port *p = &ports[c->port];
    *(c->prev ? &c->prev->next : &p->first) = c->next;
    *(c->next ? &c->next->prev : &p->last) = c->prev;
    c->queued = 0;
}

static void leave(Conn *c) {
    Port *p = &ports[c->port];
    c->busy = c->streaming = 0;
    p->inside--;
    if (c->queued) {
        unqueue(c);
        return;
    }
    no_wait(&c->wait);
    p->active--;
    if (p->first && p->active < slots) {
        Conn *next = p->first;
        unqueue(next);
        activate(next);
    }
}

static void finished(Conn *c) {
    leave(c);
    memmove(c->in.at, c->in.at + c->used, c->in.len - c->used);
    c->in.len -= c->used;
    c->used = 0;
    take_requests(c);
}

/* Its time has come: the whole answer, or the next chunk of it. */
static void due(Conn *c, uint64_t now) {
    uint64_t was_due = c->wait.ns;
    no_wait(&c->wait);
    if (was_due && now - was_due > late_max_ns) late_max_ns = now - was_due;
    if (!c->total) {
        respond(c, 200, "application/json", ANSWER, sizeof ANSWER - 1);
        finished(c);
        return;
    }
    if (!c->streaming) {
        c->streaming = 1;
        say(&c->out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                     "X-Bench-Reply: kept\r\nTransfer-Encoding: chunked\r\n\r\n");
    }
    do {
        if (c->seq < c->total) add_chunk(c);
        else {
            add_end(c);
            flush_out(c);
            finished(c);
            return;
        }
    } while (!interval_ns);
    flush_out(c);
    wait_until(&c->wait, (was_due ? was_due : now) + interval_ns);
}

static const char *find(const char *in, size_t n, const char *key) {
    size_t edge = 256; /* the short fields stand at the edges of a chat body */
    const char *at = n > edge ? memmem(in + n - edge, edge, key, strlen(key)) : NULL;
    if (!at) at = memmem(in, n < edge ? n : edge, key, strlen(key));
    if (!at) at = memmem(in, n, key, strlen(key));
    return at ? at + strlen(key) : NULL;
}

static void post(Conn *c) {
    Port *p = &ports[c->port];
    const char *value = find(c->body, c->body_len, "\"stream\"");
    c->total = 0;
    if (value && strncmp(value + strspn(value, ": "), "true", 4) == 0) {
        value = find(c->body, c->body_len, "\"max_tokens\"");
        if (!value) value = find(c->body, c->body_len, "\"max_completion_tokens\"");
        c->total = value ? (uint32_t)atoi(value + strspn(value, ": ")) : 16;
    }
    c->id = ++next_id;
    c->seq = 0;
    c->busy = 1;
    p->requests++;
    if (++p->inside > p->max_inside) p->max_inside = p->inside;
    if (!slots || p->active < slots) activate(c);
    else {
        c->queued = 1;
        c->prev = p->last;
        c->next = NULL;
        *(p->last ? &p->last->next : &p->first) = c;
        p->last = c;
    }
}

static uint64_t option(const char *line, const char *key, uint64_t otherwise) {
    const char *at = strstr(line, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : otherwise;
}

static void get(Conn *c, const char *line) {
    Port *p = &ports[c->port];
    Bytes text = {0};
    const char *path = line + 4;
    int status = 200;
#define IS(what) (strncmp(path, what, strlen(what)) == 0)
    if (IS("/set")) {
        delay_ns = option(path, "delay_us=", delay_ns / 1000) * 1000;
        interval_ns = option(path, "interval_us=", interval_ns / 1000) * 1000;
        slots = (int)option(path, "slots=", (uint64_t)slots);
        record = (int)option(path, "record=", (uint64_t)record);
    } else if (IS("/reset")) {
        late_max_ns = 0;
        for (int i = 0; i < port_count; i++)
            ports[i].requests = ports[i].hangups = ports[i].last_hangup_ns = 0, ports[i].max_inside = ports[i].inside;
    } else if (IS("/stats"))
        say(&text, "{\"requests\":%llu,\"running\":%d,\"max_running\":%d,\"hangups\":%llu,\"last_hangup_ns\":%llu,"
            "\"late_max_us\":%llu}", (unsigned long long)p->requests, p->inside, p->max_inside,
            (unsigned long long)p->hangups, (unsigned long long)p->last_hangup_ns, (unsigned long long)late_max_ns / 1000);
    else if (IS("/last_head")) put(&text, p->head.at, p->head.len);
    else if (IS("/last_body")) put(&text, p->body.at, p->body.len);
    else if (IS("/slots")) {
        for (int i = 0; i < (slots > p->inside ? slots : p->inside + 1); i++)
            say(&text, "%s{\"id\":%d,\"is_processing\":%s}", i ? "," : "[", i, i < p->inside ? "true" : "false");
        put(&text, "]", 1);
    } else if (IS("/v1/models") || IS("/models"))
        say(&text, "{\"object\":\"list\",\"data\":[{\"id\":\"bench-model\",\"object\":\"model\",\"created\":1700000000,"
            "\"owned_by\":\"bench\",\"root\":\"bench-model\",\"max_model_len\":131072}]}");
    else if (IS("/get_model_info") || IS("/model_info") || IS("/get_server_info") || IS("/server_info"))
        say(&text, "{\"model_path\":\"bench-model\",\"served_model_name\":\"bench-model\",\"tokenizer_path\":\"\","
            "\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,\"version\":\"0.5.9\"}");
    else if (IS("/version")) say(&text, "{\"version\":\"0.11.0\"}");
    else if (!IS("/health")) status = 404;
    respond(c, status, "application/json", text.at ? text.at : "{}", text.at ? text.len : 2);
    free(text.at);
}

/* The body's length once all of it is in; -1 while it is not. A chunked body is joined in place. */
static int whole_body(Conn *c) {
    char *head = c->in.at, *line = strcasestr(head, "\r\nContent-Length:"), *end = head + c->head_len;
    c->body = end;
    if (line && line < end) {
        c->body_len = strtoull(line + 17, NULL, 10);
        c->used = c->head_len + c->body_len;
        return c->in.len >= c->used;
    }
    c->body_len = 0;
    c->used = c->head_len;
    line = strcasestr(head, "\r\nTransfer-Encoding: chunked");
    if (!line || line >= end) return 1;
    for (int pass = 0; pass < 2; pass++) { /* first look, then join */
        char *at = end, *stop = c->in.at + c->in.len;
        for (size_t n = 1; n; at += n + 2) {
            char *eol = memmem(at, (size_t)(stop - at), "\r\n", 2);
            if (!eol) return 0;
            n = strtoull(at, NULL, 16);
            at = eol + 2;
            if ((size_t)(stop - at) < n + 2) return 0;
            if (pass) memmove(c->body + c->body_len, at, n), c->body_len += n;
        }
        c->used = (size_t)(at - c->in.at);
    }
    return 1;
}

static void take_requests(Conn *c) {
    while (!c->busy && c->in.len) {
        char *end = memmem(c->in.at, c->in.len, "\r\n\r\n", 4);
        if (!end) return;
        c->head_len = (size_t)(end - c->in.at) + 4;
        if (!whole_body(c)) return;
        if (c->in.at[0] == 'P') {
            if (record) {
                Port *p = &ports[c->port];
                p->head.len = p->body.len = 0;
                put(&p->head, c->in.at, c->head_len);
                put(&p->body, c->body, c->body_len);
            }
            post(c);
            return;
        }
        get(c, c->in.at);
        memmove(c->in.at, c->in.at + c->used, c->in.len - c->used);
        c->in.len -= c->used;
    }
}

static void drop(Conn *c) {
    if (c->busy) {
        ports[c->port].hangups++;
        ports[c->port].last_hangup_ns = now_ns();
        leave(c);
    }
    close(c->fd);
    free(c->in.at);
    free(c->out.at);
    free(c);
}

static void readable(Conn *c) {
    static char buffer[1 << 18];
    ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
    if (n > 0) {
        put(&c->in, buffer, (size_t)n);
        take_requests(c);
    } else if (n == 0 || errno != EAGAIN)
        drop(c);
}

static void accept_all(int listener, int port) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        Conn *c = calloc(1, sizeof *c);
        c->fd = fd, c->port = port, c->wait.at = -1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

int main(int argc, char **argv) {
    static int listeners[MAX_PORTS];
    static struct epoll_event events[512];
    port_count = argc > 1 ? atoi(argv[1]) : 1;
    signal(SIGPIPE, SIG_IGN);
    epoll_fd = epoll_create1(0);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.u64 = TIMER}, end = {.events = EPOLLIN, .data.u64 = STDIN_END};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &e);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, 0, &end);
    for (int i = 0; i < port_count && i < MAX_PORTS; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof a;
        listeners[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (bind(listeners[i], (struct sockaddr *)&a, n) || listen(listeners[i], 4096)) return 1;
        getsockname(listeners[i], (struct sockaddr *)&a, &n);
        struct epoll_event l = {.events = EPOLLIN, .data.u64 = LISTENER | (uint64_t)i};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listeners[i], &l);
        printf("%d ", ntohs(a.sin_port));
    }
    printf("\n");
    fflush(stdout);
    for (;;) {
        arm();
        int n = epoll_wait(epoll_fd, events, 512, heap_len && !heap[0]->ns ? 0 : -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == TIMER) {
                uint64_t count;
                if (read(timer_fd, &count, sizeof count) > 0) armed = 1;
            } else if (events[i].data.u64 == STDIN_END)
                return 0;
            else if (events[i].data.u64 & LISTENER)
                accept_all(listeners[events[i].data.u64 & 15], (int)(events[i].data.u64 & 15));
            else {
                Conn *c = events[i].data.ptr;
                if (events[i].events & EPOLLOUT) flush_out(c);
                if (events[i].events & ~(uint32_t)EPOLLOUT) readable(c);
            }
        }
        for (uint64_t now = now_ns(); heap_len && heap[0]->ns <= now;) due((Conn *)heap[0], now);
    }
}
