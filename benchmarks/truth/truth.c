/* A server whose times are known: it streams answers on an exact schedule and keeps what it really did.
 *
 *     truth [--port N] [--model NAME] [--ttft-us N] [--gap-us N] [--tokens N] [--always-usage]
 *
 * Listens on loopback, prints its port, ends with its stdin. One thread, epoll, nanosecond timeouts, a heap of due
 * times. Token k is due at t0 + TTFT + k * GAP whatever happened before; t0 is when the kernel had the whole request
 * (its receive stamp), so that a busy server does not make its own clock late. --tokens: instead of `max_tokens`.
 *
 * POST /v1/chat/completions, /v1/completions   the model's name, with one of FORMS behind it, says how it is streamed
 * GET /v1/models, /health
 * GET /truth?tokens=&model=&last=   what was really sent: of requests that wanted so many tokens, the last so many
 * GET /log                          the same, row by row, in ns of CLOCK_MONOTONIC
 * POST /reset                       forgets both
 */
#include "scripts.h" /* before all others: it sets _GNU_SOURCE */

#include "../peers/due.h"

#include <linux/net_tstamp.h>
#include <linux/time_types.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define LISTENER ((uint64_t)1 << 62)
#define STDIN_END ((uint64_t)1 << 61)
#define MAX_TOKENS 100000
#define MAX_BODY ((size_t)1 << 30)

typedef struct { uint64_t t0, first, last, late_first, late_max; uint32_t sent, wanted; int form, stream, whole; } Row;

typedef struct Conn {
    Due wait; /* first, so that a Due in the heap is its Conn */
    int fd, step, waiting_out, closing;
    Bytes in, out;
    size_t head_len, body_len, used; /* of the request under way; used: its bytes in `in` */
    char *body;
    const Script *script; /* NULL: between requests */
    Row row;
} Conn;

static int epoll_fd, always_usage;
static uint32_t fixed_tokens;
static uint64_t blocked;
static Row *rows;
static size_t row_count, row_cap;

/* Sending */

static void take_requests(Conn *c, uint64_t arrived);

static void watch(Conn *c, int out) {
    if (c->waiting_out == out) return;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
    c->waiting_out = out;
}

static void flush_out(Conn *c) {
    ssize_t n = send(c->fd, c->out.at, c->out.len, MSG_NOSIGNAL);
    if (n > 0) memmove(c->out.at, c->out.at + n, c->out.len -= (size_t)n);
    watch(c, c->out.len > 0);
}

static void transmit(Conn *c, const char *data, size_t n) {
    ssize_t sent = c->out.len ? 0 : send(c->fd, data, n, MSG_NOSIGNAL);
    if (sent == (ssize_t)n) return;
    if (sent < 0) sent = 0;
    blocked++; /* the client does not read, or is gone */
    put(&c->out, data + sent, n - (size_t)sent);
    watch(c, 1);
}

static void keep_row(Conn *c, int whole) {
    if (row_count == row_cap) rows = realloc(rows, (row_cap = row_cap * 2 + 1024) * sizeof *rows);
    c->row.whole = whole;
    rows[row_count++] = c->row;
    c->script = NULL;
}

static void drop(Conn *c) {
    if (c->script) keep_row(c, 0);
    no_wait(&c->wait);
    close(c->fd);
    free(c->in.at);
    free(c->out.at);
    free(c);
}

static void due(Conn *c) {
    const Step *s = &c->script->steps[c->step++];
    Row *row = &c->row;
    uint64_t late, now = now_ns();
    late = now > c->wait.ns ? now - c->wait.ns : 0;
    no_wait(&c->wait);
    transmit(c, c->script->text.at + s->begin, s->len);
    if (s->tokens) {
        if (!row->first) row->first = now, row->late_first = late;
        row->last = now;
        row->sent += s->tokens;
        if (late > row->late_max) row->late_max = late;
    }
    if (c->step < c->script->count) {
        wait_until(&c->wait, row->t0 + s[1].at_ns);
        return;
    }
    keep_row(c, 1);
    if (c->closing) {
        drop(c);
        return;
    }
    memmove(c->in.at, c->in.at + c->used, c->in.len - c->used);
    c->in.len -= c->used;
    take_requests(c, now_ns());
}

/* Requests */

static const char *find(const char *in, size_t n, const char *key) {
    const char *at = memmem(in, n, key, strlen(key));
    return at ? at + strlen(key) + strspn(at + strlen(key), ": ") : NULL;
}

static int form_of(const char *name) { /* of `name"...` */
    size_t n = strlen(model);
    if (!name || *name != '"' || strncmp(name + 1, model, n)) return PLAIN;
    for (int form = 1; form < FORM_COUNT; form++)
        if (strncmp(name + 1 + n, FORMS[form], strlen(FORMS[form])) == 0) return form;
    return PLAIN;
}

static void ask(Conn *c, uint64_t arrived) {
    const char *limit = find(c->body, c->body_len, "\"max_tokens\""), *value;
    if (!limit) limit = find(c->body, c->body_len, "\"max_completion_tokens\"");
    long n = fixed_tokens ? (long)fixed_tokens : limit ? atol(limit) : 16;
    Script key = {.form = form_of(find(c->body, c->body_len, "\"model\"")), .chat = !!memmem(c->in.at, strcspn(c->in.at, "\r"), "/chat/", 6)};
    key.tokens = n < 1 ? 1 : n > MAX_TOKENS ? MAX_TOKENS : (uint32_t)n;
    value = find(c->body, c->body_len, "\"stream\"");
    key.stream = value && strncmp(value, "true", 4) == 0;
    value = find(c->body, c->body_len, "\"include_usage\"");
    key.usage = always_usage || (value && strncmp(value, "true", 4) == 0);
    c->script = script_for(key);
    c->step = 0;
    c->row = (Row){.t0 = arrived, .wanted = key.tokens, .form = key.form, .stream = key.stream};
    wait_until(&c->wait, arrived + c->script->steps[0].at_ns);
}

static int ascending(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0;
}

static void spread(Bytes *b, const char *name, double *ms, size_t n) {
    double sum = 0;
    qsort(ms, n, sizeof *ms, ascending);
    for (size_t i = 0; i < n; i++) sum += ms[i];
    if (n) say(b, "\"%s\":{\"mean\":%.4f,\"p50\":%.4f,\"p99\":%.4f,\"max\":%.4f},", name, sum / (double)n, ms[(n - 1) / 2],
               ms[(size_t)((double)(n - 1) * 0.99)], ms[n - 1]);
    else say(b, "\"%s\":null,", name);
}

static uint64_t option(const char *line, size_t n, const char *key) {
    const char *at = memmem(line, n, key, strlen(key));
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static void truth(Bytes *b, const char *line, size_t len) {
    uint64_t wanted = option(line, len, "tokens="), last = option(line, len, "last="), first_ns = 0, last_ns = 0, late_5 = 0;
    const char *name = memmem(line, len, "model=", 6);
    char quoted[64] = "\"";
    if (name) strncat(quoted, name + 6, strcspn(name + 6, "& ") < 60 ? strcspn(name + 6, "& ") : 60);
    size_t n = 0, tokens = 0, cut = 0;
    double *ttft = malloc((row_count + 1) * 3 * sizeof *ttft), *tpot = ttft + row_count, *late = tpot + row_count;
    for (size_t i = row_count; i-- && (!last || n < last);) { /* in the order of their ends, from the last one */
        Row *r = &rows[i];
        if (!r->stream || (wanted && r->wanted != wanted) || (name && r->form != form_of(quoted))) continue;
        if (!r->whole) { cut++; continue; }
        ttft[n] = (double)(r->first - r->t0) / 1e6;
        tpot[n] = r->sent > 1 ? (double)(r->last - r->first) / 1e6 / (r->sent - 1) : 0;
        late[n++] = (double)r->late_max / 1e6;
        late_5 += r->late_max > 5 * MS;
        tokens += r->sent;
        if (!first_ns || r->t0 < first_ns) first_ns = r->t0;
        if (r->last > last_ns) last_ns = r->last;
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    say(b, "{\"requests\":%zu,\"cut\":%zu,\"tokens\":%zu,\"wall_s\":%.6f,", n, cut, tokens, (double)(last_ns - first_ns) / 1e9);
    spread(b, "ttft_ms", ttft, n);
    spread(b, "tpot_ms", tpot, n);
    spread(b, "late_ms", late, n);
    say(b, "\"late_over_5_ms\":%llu,\"blocked\":%llu,\"server_cpu_s\":%.3f}", (unsigned long long)late_5,
        (unsigned long long)blocked, (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
        (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    free(ttft);
}

static void answer(Conn *c) {
    Bytes b = {0}, head = {0};
    const char *path = strchr(c->in.at, ' ');
    size_t line = strcspn(c->in.at, "\r\n");
    int status = 200;
    path = path ? path + 1 : "";
#define IS(what) (strncmp(path, what, strlen(what)) == 0)
    if (IS("/truth")) truth(&b, c->in.at, line);
    else if (IS("/log")) {
        say(&b, "{\"columns\":[\"t0\",\"first\",\"last\",\"late_first\",\"late_max\",\"sent\",\"wanted\",\"model\",\"stream\",\"whole\"],\"rows\":[");
        for (size_t i = 0; i < row_count; i++)
            say(&b, "%s[%llu,%llu,%llu,%llu,%llu,%u,%u,\"%s%s\",%d,%d]", i ? ",\n" : "\n", (unsigned long long)rows[i].t0,
                (unsigned long long)rows[i].first, (unsigned long long)rows[i].last, (unsigned long long)rows[i].late_first,
                (unsigned long long)rows[i].late_max, rows[i].sent, rows[i].wanted, model, FORMS[rows[i].form],
                rows[i].stream, rows[i].whole);
        say(&b, "]}");
    } else if (IS("/reset")) row_count = 0, blocked = 0;
    else if (IS("/v1/models") || IS("/models")) {
        for (int form = 0; form < FORM_COUNT; form++)
            say(&b, "%s{\"id\":\"%s%s\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"truth\",\"max_model_len\":131072}",
                form ? "," : "{\"object\":\"list\",\"data\":[", model, FORMS[form]);
        say(&b, "]}");
    } else if (!IS("/health")) status = 404;
    if (!b.len) say(&b, status == 200 ? "{}" : "{\"error\":{\"message\":\"no such path\",\"type\":\"not_found\"}}");
    say(&head, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", status,
        status == 200 ? "OK" : "Not Found", b.len);
    put(&head, b.at, b.len);
    transmit(c, head.at, head.len);
    free(head.at);
    free(b.at);
}

static int refuse(Conn *c) {
    shutdown(c->fd, SHUT_RDWR);
    return 0;
}

/* Whether the body is all in; a chunked one is joined in place. */
static int whole_body(Conn *c) {
    char *end = c->in.at + c->head_len, *line = strcasestr(c->in.at, "\r\ncontent-length:");
    c->body = end;
    c->body_len = line && line < end ? strtoull(line + 17, NULL, 10) : 0;
    c->used = c->head_len + c->body_len;
    if (c->body_len > MAX_BODY) return refuse(c);
    if (line && line < end) return c->in.len >= c->used;
    line = strcasestr(c->in.at, "\r\ntransfer-encoding: chunked");
    for (int join = 0; line && line < end && join < 2; join++) {
        char *at = end, *stop = c->in.at + c->in.len;
        for (size_t n = 1; n; at += n + 2) {
            char *eol = memmem(at, (size_t)(stop - at), "\r\n", 2);
            if (!eol) return 0;
            n = strtoull(at, NULL, 16);
            if (n > MAX_BODY) return refuse(c);
            at = eol + 2;
            if ((size_t)(stop - at) < n + 2) return 0;
            if (join) memmove(c->body + c->body_len, at, n), c->body_len += n;
        }
        c->used = (size_t)(at - c->in.at);
    }
    return 1;
}

static void take_requests(Conn *c, uint64_t arrived) {
    while (!c->script && c->in.len) {
        char *end = memmem(c->in.at, c->in.len, "\r\n\r\n", 4), *line;
        if (!end) return;
        c->head_len = (size_t)(end - c->in.at) + 4;
        if (!whole_body(c)) return;
        line = strcasestr(c->in.at, "\r\nconnection: close");
        c->closing = line && line < end;
        if (strncmp(c->in.at, "POST", 4) == 0 && memmem(c->in.at, strcspn(c->in.at, "\r"), "completions", 11)) {
            ask(c, arrived);
            return;
        }
        answer(c);
        memmove(c->in.at, c->in.at + c->used, c->in.len - c->used);
        c->in.len -= c->used;
        if (c->closing) shutdown(c->fd, SHUT_WR);
    }
}

/* When the kernel got the bytes, on the monotonic clock. */
static uint64_t stamp_of(struct msghdr *message, uint64_t now) {
    for (struct cmsghdr *m = CMSG_FIRSTHDR(message); m; m = CMSG_NXTHDR(message, m)) {
        if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_TIMESTAMPING) continue;
        struct timespec stamp, real;
        memcpy(&stamp, CMSG_DATA(m), sizeof stamp);
        clock_gettime(CLOCK_REALTIME, &real);
        int64_t ago = (real.tv_sec - stamp.tv_sec) * 1000000000ll + (real.tv_nsec - stamp.tv_nsec);
        if (stamp.tv_sec && ago > 0 && ago < 60000000000ll) return now - (uint64_t)ago;
    }
    return now;
}

static void readable(Conn *c) {
    static char buffer[1 << 18], control[512];
    struct iovec part = {buffer, sizeof buffer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(c->fd, &message, 0);
    if (n > 0) {
        put(&c->in, buffer, (size_t)n);
        take_requests(c, stamp_of(&message, now_ns()));
    } else if (n == 0 || errno != EAGAIN)
        drop(c);
}

static void accept_all(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        Conn *c = calloc(1, sizeof *c);
        c->fd = fd, c->wait.at = -1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

static int listen_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int flags = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    socklen_t n = sizeof a;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    setsockopt(listener, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags); /* its connections inherit it */
    if (bind(listener, (struct sockaddr *)&a, n) || listen(listener, 4096)) return -1;
    getsockname(listener, (struct sockaddr *)&a, &n);
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    return listener;
}

int main(int argc, char **argv) {
    static struct epoll_event events[256];
    int port = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
#define OPTION(name) (strcmp(argv[i], name) == 0 && ++i)
        if (strcmp(argv[i], "--always-usage") == 0) always_usage = 1;
        else if (OPTION("--port")) port = atoi(value);
        else if (OPTION("--model")) model = value;
        else if (OPTION("--ttft-us")) ttft_ns = strtoull(value, NULL, 10) * 1000;
        else if (OPTION("--gap-us")) gap_ns = strtoull(value, NULL, 10) * 1000;
        else if (OPTION("--tokens")) fixed_tokens = (uint32_t)strtoull(value, NULL, 10);
        else return fprintf(stderr, "truth: unknown option %s\n", argv[i]), 2;
    }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1);
    epoll_fd = epoll_create1(0);
    int listener = listen_on(port);
    if (listener < 0) return perror("truth: listen"), 1;
    struct epoll_event l = {.events = EPOLLIN, .data.u64 = LISTENER}, end = {.events = EPOLLIN, .data.u64 = STDIN_END};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &l);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, 0, &end); /* refused for /dev/null: then it stays */
    for (;;) {
        uint64_t now = now_ns(), rest = heap_len && heap[0]->ns > now ? heap[0]->ns - now : 0;
        struct __kernel_timespec wait = {(int64_t)(rest / 1000000000u), (long long)(rest % 1000000000u)};
        long n = syscall(SYS_epoll_pwait2, epoll_fd, events, 256, heap_len ? &wait : NULL, NULL, 0);
        if (n < 0 && errno != EINTR) return perror("truth: epoll_pwait2"), 1;
        for (long i = 0; i < n; i++) {
            if (events[i].data.u64 == STDIN_END) return 0;
            if (events[i].data.u64 == LISTENER) accept_all(listener);
            else {
                Conn *c = events[i].data.ptr;
                if (events[i].events & EPOLLOUT) flush_out(c);
                if (events[i].events & ~(uint32_t)EPOLLOUT) readable(c);
            }
        }
        now = now_ns(); /* those due by now; new arrivals have their turn after that */
        while (heap_len && heap[0]->ns <= now) due((Conn *)heap[0]);
    }
}
