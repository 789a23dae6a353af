/* The load: one thread, epoll, keep-alive connections; prints one JSON object.
 *
 *     load closed PORT BODYFILE --conns N --requests N | --ms N [--ramp-ms N] [--chunks N] [--late-ms N]
 *         each connection sends its next request when the last is answered, until so many were sent or so long has
 *         passed. With --chunks, answers are streams of backend.c and every byte of them is checked; chunks_per_s and
 *         full_delay_us are those of the time when all streams were open. Eight @ in a row in the body become a number
 *         of the connection's own: a gateway that keeps conversations together sees as many as there are connections.
 *     load latency ROUNDS BLOCK PORT,PORT,... BODYFILE BODYFILE...
 *         one request at a time on one connection per port; in each round the ports take turns in another order.
 */
#include "bytes.h"

#include <netinet/tcp.h>
#include <sys/resource.h>

typedef struct { uint64_t *at; size_t len, cap; } Numbers;
#define UNHEARD 60 /* with a ramp: no more new connections at once than any listen queue holds */
enum { HEAD, LENGTH, SIZE, DATA, TRAILER, TO_END };

typedef struct {
    int fd, open, state, keep, status;
    size_t sent, left;   /* of the request; of the body or the chunk */
    uint64_t began_ns;
    Bytes line, event;   /* head or chunk-size line; event under way */
    uint32_t id, seq;
    int done, started, heard, failures, number;
} Conn;

static char *request;
static size_t request_len;
static char *own_number; /* its place in the request; NULL: it has none */
static uint32_t expect_chunks;
static uint64_t changed, misplaced, foreign, incomplete, chunks, duplicated;
static Numbers latencies, delays, full_delays;
static uint8_t *seen_ids;
static uint64_t late_ns, full_ns, over_ns; /* all streams are open from then, until then */

static void add(Numbers *n, uint64_t value) {
    if (n->len == n->cap) n->at = realloc(n->at, (n->cap = n->cap ? n->cap * 2 : 1024) * sizeof *n->at);
    n->at[n->len++] = value;
}

/* Streams */

/* `#` stands for a digit; everything else is compared as it is. */
static const char CHUNK[] =
    "data: {\"id\":\"chatcmpl-########\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
    "\"model\":\"bench-model\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"~########.######.################ \"},"
    "\"finish_reason\":null}]}\n\n";
static const char USAGE[] =
    "data: {\"id\":\"chatcmpl-########\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
    "\"model\":\"bench-model\",\"choices\":[],\"usage\":{\"prompt_tokens\":512,\"completion_tokens\":";

static int like(const char *text, size_t n, const char *pattern, size_t m) {
    if (n < m) return 0;
    for (size_t i = 0; i < m; i++)
        if (pattern[i] == '#' ? text[i] < '0' || text[i] > '9' : text[i] != pattern[i]) return 0;
    return 1;
}

static void event(Conn *c, const char *text, size_t n) {
    if (n == 14 && memcmp(text, "data: [DONE]\n\n", 14) == 0) {
        c->done = 1;
        return;
    }
    const char *mark = memchr(text, '~', n);
    if (!mark) {
        if (!like(text, n, USAGE, sizeof USAGE - 1) || c->seq != expect_chunks) changed++;
        return;
    }
    if (n != sizeof CHUNK - 1 || !like(text, n, CHUNK, n)) changed++;
    char *rest;
    uint32_t id = (uint32_t)strtoul(mark + 1, &rest, 10), seq = (uint32_t)strtoul(rest + 1, &rest, 10);
    uint64_t sent_ns = strtoull(rest + 1, NULL, 10);
    if (!c->seq) {
        c->id = id;
        if (seen_ids[id >> 3 & 0xffffff] >> (id & 7) & 1) duplicated++;
        seen_ids[id >> 3 & 0xffffff] |= (uint8_t)(1 << (id & 7));
    }
    foreign += id != c->id;
    misplaced += seq != c->seq;
    c->seq++;
    chunks++;
    uint64_t delay = now_ns() - sent_ns;
    add(&delays, delay);
    if (full_ns && !over_ns) add(&full_delays, delay);
}

static void body_bytes(Conn *c, const char *data, size_t n) {
    if (!expect_chunks || c->status != 200) return;
    put(&c->event, data, n);
    char *at = c->event.at, *stop = at + c->event.len, *end;
    for (; (end = memmem(at, (size_t)(stop - at), "\n\n", 2)); at = end + 2) event(c, at, (size_t)(end + 2 - at));
    memmove(c->event.at, at, (size_t)(stop - at));
    c->event.len = (size_t)(stop - at);
}

/* Answers */

static void parse_head(Conn *c) {
    char *head = c->line.at, *length = strcasestr(head, "\r\ncontent-length:");
    c->status = c->line.len > 12 ? atoi(head + 9) : 0;
    c->keep = !strcasestr(head, "\r\nconnection: close");
    c->state = strcasestr(head, "\r\ntransfer-encoding: chunked") ? SIZE : length ? LENGTH : TO_END;
    c->left = length ? strtoull(length + 17, NULL, 10) : 0;
    if (c->state == TO_END) c->keep = 0;
    c->line.len = 0;
}

/* 1 when the answer is complete. */
static int feed(Conn *c, const char *at, size_t n) {
    for (const char *stop = at + n; at < stop;) {
        if (c->state == LENGTH || c->state == DATA || c->state == TO_END) {
            size_t part = (size_t)(stop - at);
            if (c->state != TO_END && part > c->left) part = c->left;
            body_bytes(c, at, part);
            at += part;
            c->left -= part;
            if (c->state == LENGTH && !c->left) return 1;
            if (c->state == DATA && !c->left) c->state = SIZE;
            continue;
        }
        const char *eol = memchr(at, '\n', (size_t)(stop - at));
        size_t part = (size_t)((eol ? eol + 1 : stop) - at);
        put(&c->line, at, part);
        at += part;
        if (!eol) return 0;
        if (c->state == HEAD) {
            if (c->line.len < 4 || memcmp(c->line.at + c->line.len - 4, "\r\n\r\n", 4)) continue;
            parse_head(c);
            if (c->state == LENGTH && !c->left) return 1;
        } else {
            int blank = c->line.len == 2;
            size_t size = strtoull(c->line.at, NULL, 16);
            c->line.len = 0;
            if (c->state == TRAILER && blank) return 1;
            if (c->state == SIZE && !blank) c->left = size, c->state = size ? DATA : TRAILER;
        }
    }
    return 0;
}

static int open_socket(int port, int flags) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (connect(fd, (struct sockaddr *)&a, sizeof a) && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    return fd;
}

static void load_request(const char *file, int port) {
    FILE *f = fopen(file, "rb");
    if (!f) exit(2);
    char *body = malloc(1 << 22);
    size_t n = fread(body, 1, 1 << 22, f);
    fclose(f);
    const char *key = getenv("BENCH_KEY");
    request = malloc(n + 1024);
    int head = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nUser-Agent: "
                       "bench\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %zu\r\n\r\n", port, key ? key : "none", n);
    memcpy(request + head, body, n);
    request_len = (size_t)head + n;
    own_number = memmem(request, request_len, "@@@@@@@@", 8);
    free(body);
}

static void fresh(Conn *c) {
    c->state = HEAD;
    c->line.len = c->event.len = 0;
    c->sent = 0;
    c->seq = c->id = 0;
    c->done = 0;
}

/* Closed loop */

/* What is left of its request, or as much of it as can be sent now. */
static ssize_t send_request(Conn *c) {
    char number[9];
    snprintf(number, sizeof number, "%04u%04u", (unsigned)getpid() % 10000u, (unsigned)c->number % 10000u);
    if (own_number) memcpy(own_number, number, 8);
    return send(c->fd, request + c->sent, request_len - c->sent, MSG_NOSIGNAL);
}

static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void print_numbers(const char *name, Numbers *n) {
    if (n->len) qsort(n->at, n->len, sizeof *n->at, by_number);
#define RANK(q) (n->len ? (double)n->at[(size_t)((double)(n->len - 1) * (q))] / 1000 : 0.0)
    size_t late = 0;
    for (; late < n->len && n->at[n->len - 1 - late] > late_ns; late++) {}
    printf("\"%s\":{\"p50\":%.1f,\"p99\":%.1f,\"max\":%.1f,\"late\":%zu}", name, RANK(0.5), RANK(0.99), RANK(1.0), late);
}

static int long_option(int argc, char **argv, const char *name, int otherwise) {
    for (int i = 0; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0) return atoi(argv[i + 1]);
    return otherwise;
}

static int closed_loop(int argc, char **argv) {
    int port = atoi(argv[2]), count = long_option(argc, argv, "--conns", 8), ms = long_option(argc, argv, "--ms", 0);
    int total = long_option(argc, argv, "--requests", ms ? 1 << 30 : 1000), ramp = long_option(argc, argv, "--ramp-ms", 0);
    uint64_t statuses[600] = {0}, answered = 0, failed = 0, reconnects = 0, waited = 0, full_chunks = 0;
    static struct epoll_event events[512];
    static char buffer[1 << 18];
    load_request(argv[3], port);
    expect_chunks = (uint32_t)long_option(argc, argv, "--chunks", 0);
    late_ns = (uint64_t)long_option(argc, argv, "--late-ms", 50) * 1000000u;
    Conn *conns = calloc((size_t)count, sizeof *conns);
    int epoll_fd = epoll_create1(0), sent = 0, live = 0, opened = 0, unheard = 0, stopping = 0, most = 0;
    uint64_t began = now_ns(), ended = began;
    while (live || (!stopping && sent < total)) {
        uint64_t now = now_ns();
        if (ms && now - began > (uint64_t)ms * 1000000u) stopping = 1;
        if (now - ended > 20000000000u) break; /* 20 s without a byte */
        int wanted = ramp ? (int)((now - began) / 1000u * (uint64_t)count / ((uint64_t)ramp * 1000u)) + 1 : count;
        if (ramp && unheard >= UNHEARD) wanted = 0;
        for (int i = 0; !stopping && live < wanted && i < count && i < wanted && sent < total; i++) {
            Conn *c = &conns[i];
            if (c->open) continue;
            if (!c->started) opened++;
            fresh(c);
            reconnects += (uint64_t)c->started;
            c->started = 1;
            c->fd = open_socket(port, SOCK_NONBLOCK);
            if (c->fd < 0) { failed++; sent++; continue; }
            c->open = 1;
            c->number = i;
            c->heard = 0;
            c->began_ns = now_ns();
            sent++;
            live++;
            if (++unheard >= UNHEARD && ramp) wanted = 0;
            struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
            epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e);
        }
        int n = epoll_wait(epoll_fd, events, 512, opened < count && ramp ? 1 : 100);
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            int complete = 0, gone = 0;
            if (events[i].events & EPOLLOUT && c->sent < request_len) {
                ssize_t m = send_request(c);
                if (m > 0) c->sent += (size_t)m;
                if (c->sent == request_len) {
                    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
                    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
                }
            }
            if (events[i].events & ~(uint32_t)EPOLLOUT) {
                ssize_t m = recv(c->fd, buffer, sizeof buffer, 0);
                if (m > 0) {
                    unheard -= !c->heard;
                    c->heard = 1;
                    complete = feed(c, buffer, (size_t)m);
                    ended = now_ns();
                    if (live - unheard > most) most = live - unheard;
                    if (!full_ns && opened == count && !unheard) full_ns = ended, full_chunks = chunks;
                    if (complete && full_ns && !over_ns) over_ns = ended, full_chunks = chunks - full_chunks;
                }
                if (m == 0 || (m < 0 && errno != EAGAIN)) gone = 1, complete = c->state == TO_END;
            }
            if (!complete && !gone) continue;
            if (complete) {
                answered++;
                statuses[c->status > 0 && c->status < 600 ? c->status : 0]++;
                add(&latencies, now_ns() - c->began_ns);
                if (expect_chunks && (c->seq != expect_chunks || !c->done)) incomplete++;
            } else
                failed++;
            if (!gone && c->keep && !stopping && sent < total && !(ms && now_ns() - began > (uint64_t)ms * 1000000u)) {
                fresh(c);
                c->began_ns = now_ns();
                sent++;
                ssize_t m = send_request(c);
                c->sent = m > 0 ? (size_t)m : 0;
                if (c->sent < request_len) {
                    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
                    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
                }
                continue;
            }
            close(c->fd);
            unheard -= !c->heard;
            c->open = 0;
            live--;
        }
    }
    waited = (uint64_t)live;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"answered\":%llu,\"failed\":%llu,\"unanswered\":%llu,\"reconnects\":%llu,\"wall_s\":%.6f,\"cpu_s\":%.6f,\"statuses\":{",
           (unsigned long long)answered, (unsigned long long)failed, (unsigned long long)waited,
           (unsigned long long)reconnects, (double)(ended - began) / 1e9,
           (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    for (int i = 0, first = 1; i < 600; i++)
        if (statuses[i]) printf("%s\"%d\":%llu", first ? "" : ",", i, (unsigned long long)statuses[i]), first = 0;
    printf("},\"chunks\":%llu,\"most_open\":%d,\"all_open_after_s\":%.3f,\"chunks_per_s\":%.1f,\"changed\":%llu,\"misplaced\":%llu,\"foreign\":%llu,\"duplicated\":%llu,\"incomplete\":%llu,",
           (unsigned long long)chunks, most, full_ns ? (double)(full_ns - began) / 1e9 : -1.0, over_ns > full_ns ? (double)full_chunks * 1e9 / (double)(over_ns - full_ns) : 0.0,
           (unsigned long long)changed, (unsigned long long)misplaced,
           (unsigned long long)foreign, (unsigned long long)duplicated, (unsigned long long)incomplete);
    print_numbers("latency_us", &latencies);
    printf(",");
    print_numbers("chunk_delay_us", &delays);
    printf(",");
    print_numbers("full_delay_us", &full_delays);
    printf("}\n");
    return 0;
}

/* One at a time, ports in turns */

static uint64_t ask(Conn *c, int port) {
    static char buffer[1 << 18];
    for (int attempt = 0; attempt < 2 && c->failures < 3; attempt++) { /* the second on a new connection */
        if (!c->open) {
            c->fd = open_socket(port, 0);
            if (c->fd < 0) return 0;
            c->open = 1;
            struct timeval limit = {.tv_sec = 10};
            setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        }
        fresh(c);
        uint64_t began = now_ns();
        while (c->sent < request_len) {
            ssize_t n = send(c->fd, request + c->sent, request_len - c->sent, MSG_NOSIGNAL);
            if (n <= 0) break;
            c->sent += (size_t)n;
        }
        for (ssize_t n; (n = recv(c->fd, buffer, sizeof buffer, 0)) > 0;) {
            if (!feed(c, buffer, (size_t)n)) continue;
            uint64_t took = now_ns() - began;
            if (!c->keep) close(c->fd), c->open = 0;
            c->failures = 0;
            return c->status == 200 ? took : 0;
        }
        close(c->fd);
        c->open = 0;
        c->failures++;
    }
    return 0;
}

static int latency(int argc, char **argv) {
    int rounds = atoi(argv[2]), block = atoi(argv[3]), count = 0, ports[64];
    for (char *word = strtok(argv[4], ","); word && count < 64; word = strtok(NULL, ",")) ports[count++] = atoi(word);
    Conn *conns = calloc((size_t)count, sizeof *conns);
    printf("[");
    for (int round = 0; round < rounds; round++)
        for (int body = 5; body < argc; body++)
            for (int turn = 0; turn < count; turn++) {
                int which = (turn + round) % count;
                load_request(argv[body], ports[which]);
                ask(&conns[which], ports[which]); /* wakes it up; not counted */
                printf("%s{\"round\":%d,\"body\":%d,\"port\":%d,\"ns\":[", round || body > 5 || turn ? ",\n" : "", round, body - 5, which);
                for (int i = 0; i < block; i++)
                    printf("%s%llu", i ? "," : "", (unsigned long long)ask(&conns[which], ports[which]));
                printf("]}");
                free(request);
            }
    printf("]\n");
    return 0;
}

int main(int argc, char **argv) {
    seen_ids = calloc(1, 1 << 24);
    if (argc > 5 && strcmp(argv[1], "closed") == 0) return closed_loop(argc, argv);
    if (argc > 5 && strcmp(argv[1], "latency") == 0) return latency(argc, argv);
    fprintf(stderr, "usage: load closed PORT BODY --conns N ... | load latency ROUNDS BLOCK PORTS BODY...\n");
    return 2;
}
