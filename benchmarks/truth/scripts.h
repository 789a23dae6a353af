/* What truth.c answers: for each kind of request a script, written once, of bytes and when they are due.
 *
 * The forms are things that servers do and that a client must measure right:
 *   role         two events without a token, 30 and 20 ms before the first one
 *   reasoning    the first half of the tokens is delta.reasoning_content
 *   coalesced    four events in one network write
 *   multitoken   three tokens in one event; usage says how many there were
 *   comments     `: keep-alive` lines between events and before the first one, and CRLF
 *   split        each event in two writes 2 ms apart, cut within a character; the token is due with the second one
 *   lateusage    an empty event with the finish_reason one gap after the last token, usage 50 ms after that
 */
#pragma once
#include "../peers/bytes.h"

#include <stdarg.h>

#define MS 1000000ull

static uint64_t ttft_ns = 50 * MS, gap_ns = 10 * MS;
static const char *model = "truth";

enum { PLAIN, ROLE, REASONING, COALESCED, MULTITOKEN, COMMENTS, SPLIT, LATEUSAGE, FORM_COUNT };
static const char *FORMS[FORM_COUNT] = {"",          "-role",  "-reasoning", "-coalesced", "-multitoken",
                                        "-comments", "-split", "-lateusage"};
static const char *WORDS[] = {"the ", "parser ", "returns ", "an ", "empty ", "list ", "when ", "input ", "ends "};

/* The answer to a kind of request, written once: what is sent how long after t0. */
typedef struct { uint64_t at_ns; uint32_t tokens; size_t begin, len; } Step;
typedef struct Script {
    int form, chat, stream, usage, count, cap;
    uint32_t tokens;
    Step *steps;
    Bytes text;
    struct Script *next;
} Script;

static Script *scripts;

static void say(Bytes *b, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put(b, text, (size_t)n);
}

static void step(Script *s, uint64_t at_ns, uint32_t tokens, const char *data, size_t n, int chunked) {
    if (s->count == s->cap) s->steps = realloc(s->steps, (size_t)(s->cap = s->cap * 2 + 64) * sizeof *s->steps);
    size_t begin = s->text.len;
    if (chunked) say(&s->text, "%zx\r\n", n);
    put(&s->text, data, n);
    if (chunked) put(&s->text, "\r\n", 2);
    s->steps[s->count++] = (Step){at_ns, tokens, begin, s->text.len - begin};
}

/* One event; `delta` is the inside of a chat delta, or the text of a completion, in JSON. */
static void event(Bytes *b, const Script *s, const char *delta, const char *finish, const char *eol) {
    say(b, "data: {\"id\":\"cmpl-truth\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"%s%s\",\"choices\":[{\"index\":0,",
        s->chat ? "chat.completion.chunk" : "text_completion", model, FORMS[s->form]);
    say(b, s->chat ? "\"delta\":{%s}," : "\"text\":%s,", delta);
    say(b, "\"finish_reason\":%s}]}%s%s", finish, eol, eol);
}

static void usage(Bytes *b, const Script *s) {
    say(b, "\"usage\":{\"prompt_tokens\":64,\"completion_tokens\":%u,\"total_tokens\":%u}", s->tokens, s->tokens + 64);
}

static void usage_event(Bytes *b, const Script *s, const char *eol) {
    if (s->usage) {
        say(b, "data: {\"id\":\"cmpl-truth\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"%s%s\",\"choices\":[],",
            s->chat ? "chat.completion.chunk" : "text_completion", model, FORMS[s->form]);
        usage(b, s);
        say(b, "}%s%s", eol, eol);
    }
    say(b, "data: [DONE]%s%s", eol, eol);
}

static void token_event(Bytes *b, const Script *s, uint32_t k, uint32_t count, const char *eol) {
    char words[256] = "\"", delta[320];
    for (uint32_t i = 0; i < count; i++)
        strcat(words, s->form == SPLIT ? "na\xc3\xafve " : WORDS[(k + i) % (sizeof WORDS / sizeof *WORDS)]);
    strcat(words, "\"");
    const char *key = s->form == REASONING && k < s->tokens / 2 ? "reasoning_content" : "content";
    snprintf(delta, sizeof delta, s->chat ? "\"%s\":%s" : "%.0s%s", key, words);
    event(b, s, delta, "null", eol);
}

static uint64_t before(uint64_t at, uint64_t ns) { return at > ns ? at - ns : 0; }

static void stream_script(Script *s) {
    static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                               "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
    static const char COMMENT[] = ": keep-alive\r\n\r\n";
    const char *eol = s->form == COMMENTS ? "\r\n" : "\n";
    uint32_t together = s->form == COALESCED ? 4 : s->form == MULTITOKEN ? 3 : 1; /* tokens in one write */
    uint64_t at = ttft_ns;
    Bytes b = {0};
    step(s, 0, 0, HEAD, sizeof HEAD - 1, 0);
    if (s->form == ROLE && s->chat) {
        event(&b, s, "\"role\":\"assistant\",\"content\":\"\"", "null", eol);
        step(s, before(ttft_ns, 30 * MS), 0, b.at, b.len, 1);
        b.len = 0;
        event(&b, s, "\"role\":\"assistant\",\"content\":null", "null", eol);
        step(s, before(ttft_ns, 20 * MS), 0, b.at, b.len, 1);
    }
    if (s->form == COMMENTS) step(s, before(ttft_ns, 30 * MS), 0, COMMENT, sizeof COMMENT - 1, 1);
    for (uint32_t k = 0; k < s->tokens; k += together) {
        uint32_t n = s->tokens - k < together ? s->tokens - k : together;
        int last = k + n == s->tokens;
        at = ttft_ns + k * gap_ns;
        b.len = 0;
        if (s->form == COMMENTS && k % 8 == 7) put(&b, COMMENT, sizeof COMMENT - 1);
        if (s->form == MULTITOKEN) token_event(&b, s, k, n, eol);
        else
            for (uint32_t i = 0; i < n; i++) token_event(&b, s, k + i, 1, eol);
        if (s->form == SPLIT) { /* a token is there when its event is whole */
            size_t cut = (size_t)((char *)memmem(b.at, b.len, "\xc3", 1) - b.at) + 1;
            step(s, before(at, 2 * MS), 0, b.at, cut, 1);
            memmove(b.at, b.at + cut, b.len - cut);
            b.len -= cut;
        }
        if (last && s->form != LATEUSAGE) {
            event(&b, s, s->chat ? "" : "\"\"", "\"length\"", eol);
            usage_event(&b, s, eol);
        }
        step(s, at, n, b.at, b.len, 1);
    }
    if (s->form == LATEUSAGE) {
        b.len = 0;
        event(&b, s, s->chat ? "" : "\"\"", "\"length\"", eol);
        step(s, at + gap_ns, 0, b.at, b.len, 1);
        b.len = 0;
        usage_event(&b, s, eol);
        step(s, at + gap_ns + 50 * MS, 0, b.at, b.len, 1);
    }
    put(&s->text, "0\r\n\r\n", 5); /* behind the last step's bytes */
    s->steps[s->count - 1].len += 5;
    free(b.at);
}

static void whole_script(Script *s) {
    Bytes b = {0}, head = {0};
    say(&b, "{\"id\":\"cmpl-truth\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"%s%s\",\"choices\":[{\"index\":0,%s",
        s->chat ? "chat.completion" : "text_completion", model, FORMS[s->form],
        s->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"");
    for (uint32_t k = 0; k < s->tokens; k++) say(&b, "%s", WORDS[k % (sizeof WORDS / sizeof *WORDS)]);
    say(&b, "\"%s,\"finish_reason\":\"length\"}],", s->chat ? "}" : "");
    usage(&b, s);
    say(&b, "}");
    say(&head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", b.len);
    put(&head, b.at, b.len);
    step(s, ttft_ns + (s->tokens - 1) * gap_ns, s->tokens, head.at, head.len, 0);
    free(b.at);
    free(head.at);
}

static const Script *script_for(Script key) {
    for (Script *s = scripts; s; s = s->next)
        if (s->form == key.form && s->chat == key.chat && s->stream == key.stream && s->usage == key.usage &&
            s->tokens == key.tokens)
            return s;
    Script *s = malloc(sizeof *s);
    *s = key;
    s->next = scripts;
    scripts = s;
    s->stream ? stream_script(s) : whole_script(s);
    return s;
}
