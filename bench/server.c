/* The load server of the benches: chat completions, small or streamed, at a known pace, with its own clock in each event.

   cc -O2 -o server server.c              plain HTTP
   cc -O2 -DTLS -o server server.c -lssl -lcrypto

   server [--events N] [--gap-us N] [--ttft-us N] [--spread-us N] [--port N] [--counters FILE] [--stamps FILE]
          [--tls CERT KEY]

   It listens on 127.0.0.1, prints `port N` and serves until its stdin ends or a SIGTERM comes. One thread, epoll.

   A body with "stream":true is answered by N events, the first --ttft-us (and up to --spread-us more, evenly over the
   streams, so that streams begun together are out of step) after the request was read, then one every --gap-us, then
   finish_reason, usage and [DONE]. Any other POST gets a whole answer of 300 bytes at once. The content of an event is
   CLOCK_MONOTONIC in ns just before it was written. --counters is a file that whoever measures maps into memory
   (struct counters), --stamps is written at the end: one struct stamp an event. One request at a time on a connection. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

struct counters { /* read by bench/server.py: keep both in step */
    uint64_t connections, open, begun, ended, events, cut, refused, late_1ms;
};

struct stamp {
    uint32_t stream, event; /* event NO_EVENT: the request had been read */
    uint64_t due_ns, sent_ns;
};
#define NO_EVENT UINT32_MAX

struct connection {
    int fd, handshaken, gone, busy, writing, close_after;
    size_t head_length;
    uint64_t body_left;
    int wants_stream;
    size_t tail_length;
    uint32_t stream, next_event;
    uint64_t due_ns;
    struct connection *next_grave;
    char *out; /* what the socket would not take yet */
    size_t out_length, out_size;
#ifdef TLS
    SSL *ssl;
#endif
    char tail[32];
    char head[16384];
};

static int poller, timer;
static struct connection *graves;
static uint32_t events_a_stream = 64, streams;
static uint64_t gap_ns = 20000000, ttft_ns = 100000000, spread_ns;
static struct counters *count;
static struct stamp *stamps;
static size_t stamp_count, stamp_size;
static int keep_stamps;
static char scratch[1 << 18];
#ifdef TLS
static SSL_CTX *tls;
#endif

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void stamp(uint32_t stream, uint32_t event, uint64_t due_ns, uint64_t sent_ns) {
    if (!keep_stamps) return;
    if (stamp_count == stamp_size) {
        stamp_size = stamp_size ? stamp_size * 2 : 1 << 16;
        if (!(stamps = realloc(stamps, stamp_size * sizeof *stamps))) die("memory for stamps");
    }
    stamps[stamp_count++] = (struct stamp){stream, event, due_ns, sent_ns};
}

/* ---- what is due: a binary heap of connections by their next event ---- */

static struct connection **heap;
static size_t heap_count, heap_size;

static void heap_push(struct connection *c) {
    if (heap_count == heap_size) {
        heap_size = heap_size ? heap_size * 2 : 1024;
        if (!(heap = realloc(heap, heap_size * sizeof *heap))) die("memory for the heap");
    }
    size_t i = heap_count++;
    for (; i && heap[(i - 1) / 2]->due_ns > c->due_ns; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static struct connection *heap_pop(void) {
    struct connection *top = heap[0], *last = heap[--heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < heap_count) {
        if (child + 1 < heap_count && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (heap[child]->due_ns >= last->due_ns) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* ---- bytes in and out, plain or TLS; -1 is "not now", 0 is "gone" ---- */

static ssize_t take(struct connection *c, char *to, size_t most) {
#ifdef TLS
    if (c->ssl) {
        int n = SSL_read(c->ssl, to, (int)most);
        if (n > 0) return n;
        int e = SSL_get_error(c->ssl, n);
        ERR_clear_error();
        return e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE ? -1 : 0;
    }
#endif
    ssize_t n = recv(c->fd, to, most, 0);
    return n >= 0 ? n : errno == EAGAIN ? -1 : 0;
}

static ssize_t give(struct connection *c, const char *from, size_t length) {
#ifdef TLS
    if (c->ssl) {
        int n = SSL_write(c->ssl, from, (int)length);
        if (n > 0) return n;
        int e = SSL_get_error(c->ssl, n);
        ERR_clear_error();
        return e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE ? -1 : 0;
    }
#endif
    ssize_t n = send(c->fd, from, length, MSG_NOSIGNAL);
    return n >= 0 ? n : errno == EAGAIN ? -1 : 0;
}

/* Freed at the end of the round, because callers still look at `gone`; one that is in the heap when it comes up there. */
static void drop(struct connection *c) {
    if (c->gone) return;
    c->gone = 1;
    count->open--;
    if (c->busy) count->cut++;
#ifdef TLS
    if (c->ssl) SSL_free(c->ssl);
#endif
    close(c->fd);
    free(c->out);
    c->out = NULL;
    c->out_length = 0;
    if (!c->busy) c->next_grave = graves, graves = c;
}

static void bury(void) {
    for (struct connection *c = graves, *next; c; c = next) {
        next = c->next_grave;
        free(c);
    }
    graves = NULL;
}

static void watch(struct connection *c, int writing) {
    struct epoll_event e = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    c->writing = writing;
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void put(struct connection *c, const char *from, size_t length) {
    if (!c->out_length) {
        ssize_t n = give(c, from, length);
        if (n == 0) {
            drop(c);
            return;
        }
        if (n > 0) from += n, length -= (size_t)n;
        if (!length) return;
    }
    if (c->out_length + length > c->out_size) {
        c->out_size = 2 * (c->out_length + length);
        if (!(c->out = realloc(c->out, c->out_size))) die("memory for a slow reader");
    }
    memcpy(c->out + c->out_length, from, length);
    c->out_length += length;
    if (!c->writing) watch(c, 1);
}

static void flush(struct connection *c) {
    ssize_t n = c->out_length ? give(c, c->out, c->out_length) : -1;
    if (n == 0) {
        drop(c);
        return;
    }
    if (n > 0) memmove(c->out, c->out + n, c->out_length -= (size_t)n);
    if (c->out_length) return;
    if (c->close_after && !c->busy) drop(c);
    else watch(c, 0);
}

/* The last bytes of an answer. */
static void put_end(struct connection *c, const char *from, size_t length) {
    put(c, from, length);
    if (c->close_after && !c->out_length) drop(c);
}

/* ---- answers ---- */

static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    "x-request-id: bench-%08u\r\n\r\n";
#define CHUNK_BEGIN \
    "data: {\"id\":\"chatcmpl-bench-%08u\",\"object\":\"chat.completion.chunk\",\"created\":1795190199,\"model\":\"bench\","
static const char ROLE[] =
    CHUNK_BEGIN "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n";
static const char TOKEN[] =
    CHUNK_BEGIN "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" %019llu\"},\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n";
static const char FINISH[] =
    CHUNK_BEGIN "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n";
static const char USAGE[] =
    CHUNK_BEGIN "\"choices\":[],\"usage\":{\"prompt_tokens\":32,\"total_tokens\":%u,\"completion_tokens\":%u}}\n\n";
static const char WHOLE[] =
    "{\"id\":\"chatcmpl-bench-%08u\",\"object\":\"chat.completion\",\"created\":1795190199,\"model\":\"bench\",\"choices\":"
    "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"the river %019llu\"},\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":32,\"total_tokens\":40,\"completion_tokens\":8}}";
static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"owned_by\":\"bench\",\"max_model_len\":131072}]}";

static size_t chunked(char *to, const char *text, int length) {
    int n = sprintf(to, "%x\r\n", (unsigned)length);
    memcpy(to + n, text, (size_t)length);
    memcpy(to + n + length, "\r\n", 2);
    return (size_t)(n + length + 2);
}

static void answer(struct connection *c, const char *status, const char *type, const char *body) {
    char text[2048];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\nx-request-id: bench-%08u\r\n\r\n%s",
                     status, type, strlen(body), c->stream, body);
    put_end(c, text, (size_t)n);
}

static void begin(struct connection *c) {
    uint64_t now = now_ns();
    char text[512];
    count->begun++;
    c->stream = streams++;
    if (!c->wants_stream) {
        snprintf(text, sizeof text, WHOLE, c->stream, (unsigned long long)now);
        count->ended++;
        answer(c, "200 OK", "application/json", text);
        return;
    }
    c->busy = 1;
    c->next_event = 0;
    /* The golden ratio spreads any number of streams evenly, whatever order they come in. */
    uint64_t share = spread_ns ? (uint64_t)((double)spread_ns * ((c->stream * 2654435769u) / 4294967296.0)) : 0;
    c->due_ns = now + ttft_ns + share;
    stamp(c->stream, NO_EVENT, now, now);
    heap_push(c);
    put(c, text, (size_t)snprintf(text, sizeof text, STREAM_HEAD, c->stream));
}

static void finish(struct connection *c) {
    char line[512], text[2048];
    size_t n = chunked(text, line, snprintf(line, sizeof line, FINISH, c->stream));
    n += chunked(text + n, line, snprintf(line, sizeof line, USAGE, c->stream, 32 + events_a_stream, events_a_stream));
    n += chunked(text + n, "data: [DONE]\n\n", 14);
    memcpy(text + n, "0\r\n\r\n", 5);
    c->busy = 0;
    count->ended++;
    put_end(c, text, n + 5);
}

/* Everything that is due now. */
static void beat(void) {
    uint64_t now;
    while (heap_count && heap[0]->due_ns <= (now = now_ns())) {
        char line[512], text[1024];
        size_t n = 0;
        struct connection *c = heap_pop();
        if (c->gone) {
            free(c);
            continue;
        }
        if (c->next_event == events_a_stream) {
            finish(c);
            continue;
        }
        if (c->next_event == 0) n = chunked(text, line, snprintf(line, sizeof line, ROLE, c->stream));
        n += chunked(text + n, line, snprintf(line, sizeof line, TOKEN, c->stream, (unsigned long long)now));
        stamp(c->stream, c->next_event++, c->due_ns, now);
        count->events++;
        if (now - c->due_ns > 1000000) count->late_1ms++;
        /* The end follows its last token at once, as an engine's does. */
        if (c->next_event < events_a_stream) c->due_ns += gap_ns;
        heap_push(c);
        put(c, text, n);
    }
    struct itimerspec at = {{0, 0}, {0, 0}};
    if (heap_count) {
        at.it_value.tv_sec = (time_t)(heap[0]->due_ns / 1000000000u);
        at.it_value.tv_nsec = (long)(heap[0]->due_ns % 1000000000u);
    }
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* ---- requests ---- */

static int says_stream(const char *text, size_t length) {
    const char *end = text + length, *at = text;
    while ((at = memmem(at, (size_t)(end - at), "\"stream\"", 8))) {
        at += 8;
        while (at < end && (*at == ' ' || *at == ':')) at++;
        if (at < end && *at == 't') return 1;
    }
    return 0;
}

/* Bodies are not kept: only whether they ask for a stream is looked for, also across reads. */
static void look(struct connection *c, const char *part, size_t length) {
    char seam[64];
    size_t more = length < 32 ? length : 32;
    if (c->wants_stream) return;
    memcpy(seam, c->tail, c->tail_length);
    memcpy(seam + c->tail_length, part, more);
    c->wants_stream = says_stream(seam, c->tail_length + more) || says_stream(part, length);
    if (length >= sizeof c->tail) {
        memcpy(c->tail, part + length - sizeof c->tail, c->tail_length = sizeof c->tail);
    } else {
        size_t all = c->tail_length + length, from = all > sizeof c->tail ? all - sizeof c->tail : 0;
        memcpy(c->tail, seam + from, c->tail_length = all - from);
    }
}

static void whole_head(struct connection *c) {
    c->head[c->head_length] = 0;
    c->wants_stream = 0;
    c->tail_length = 0;
    c->body_left = 0;
    if (strcasestr(c->head, "\r\nconnection: close")) c->close_after = 1;
    const char *length = strcasestr(c->head, "\r\ncontent-length:");
    if (length) c->body_left = strtoull(length + 17, NULL, 10);
    if (strncmp(c->head, "POST ", 5) == 0 && length) {
        if (!c->body_left) begin(c);
    } else if (strncmp(c->head, "GET ", 4) != 0) {
        count->refused++;
        c->close_after = 1;
        answer(c, "411 Length Required", "text/plain", "a POST with Content-Length was expected\n");
    } else if (strncmp(c->head + 4, "/v1/models", 10) == 0) {
        answer(c, "200 OK", "application/json", MODELS);
    } else if (strncmp(c->head + 4, "/health", 7) == 0) {
        answer(c, "200 OK", "text/plain", "");
    } else {
        answer(c, "404 Not Found", "application/json", "{\"detail\":\"Not Found\"}");
    }
    c->head_length = 0;
}

static void feed(struct connection *c, const char *part, size_t length) {
    while (length && !c->gone) {
        if (c->body_left) {
            size_t n = length < c->body_left ? length : c->body_left;
            look(c, part, n);
            part += n, length -= n, c->body_left -= n;
            if (!c->body_left) begin(c);
            continue;
        }
        size_t space = sizeof c->head - 1 - c->head_length, before = c->head_length;
        size_t n = length < space ? length : space;
        if (c->busy || !n) { /* pipelining, or a head without end: no client of these benches does either */
            count->refused++;
            drop(c);
            return;
        }
        memcpy(c->head + before, part, n);
        char *end = memmem(c->head, before + n, "\r\n\r\n", 4);
        if (!end) {
            c->head_length += n;
            return;
        }
        size_t used = (size_t)(end + 4 - c->head) - before;
        c->head_length = before + used;
        part += used, length -= used;
        whole_head(c);
    }
}

static void readable(struct connection *c) {
#ifdef TLS
    if (c->ssl && !c->handshaken) {
        int n = SSL_accept(c->ssl);
        if (n != 1) {
            int e = SSL_get_error(c->ssl, n);
            ERR_clear_error();
            if (e != SSL_ERROR_WANT_READ && e != SSL_ERROR_WANT_WRITE) drop(c);
            return;
        }
        c->handshaken = 1;
    }
#endif
    for (;;) {
        ssize_t n = take(c, scratch, sizeof scratch);
        if (n == 0) drop(c);
        if (n <= 0) return;
        feed(c, scratch, (size_t)n);
        if (c->gone) return;
#ifdef TLS
        if (c->ssl && SSL_pending(c->ssl)) continue; /* epoll does not know of these */
#endif
        if ((size_t)n < sizeof scratch) return;
    }
}

/* ---- the loop ---- */

static void welcome(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK), one = 1;
        if (fd < 0) return;
        struct connection *c = calloc(1, sizeof *c);
        if (!c) die("memory for a connection");
        c->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
#ifdef TLS
        if (tls) {
            c->ssl = SSL_new(tls);
            SSL_set_fd(c->ssl, fd);
        }
#endif
        count->connections++;
        count->open++;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof a;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096)) die("listen");
    getsockname(fd, (struct sockaddr *)&a, &length);
    printf("port %d\n", ntohs(a.sin_port));
    fflush(stdout);
    return fd;
}

static void *map_counters(const char *path) {
    size_t size = sizeof(struct counters);
    int fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
    if (path && (fd < 0 || ftruncate(fd, (off_t)size))) die(path);
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, path ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (at == MAP_FAILED) die("counters");
    return at;
}

static void use_tls(const char *certificate, const char *key) {
#ifdef TLS
    tls = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (SSL_CTX_use_certificate_chain_file(tls, certificate) != 1 || SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1) {
        ERR_print_errors_fp(stderr);
        exit(1);
    }
#else
    (void)certificate, (void)key;
    fputs("this server was compiled without TLS\n", stderr);
    exit(2);
#endif
}

int main(int argc, char **argv) {
    const char *stamps_path = NULL, *counters_path = NULL;
    int port = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--events")) events_a_stream = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--gap-us")) gap_ns = strtoull(value, NULL, 10) * 1000;
        else if (!strcmp(name, "--ttft-us")) ttft_ns = strtoull(value, NULL, 10) * 1000;
        else if (!strcmp(name, "--spread-us")) spread_ns = strtoull(value, NULL, 10) * 1000;
        else if (!strcmp(name, "--stamps")) stamps_path = value;
        else if (!strcmp(name, "--counters")) counters_path = value;
        else if (!strcmp(name, "--tls") && i + 2 < argc) use_tls(value, argv[++i + 1]);
        else return fprintf(stderr, "unknown option %s\n", name), 2;
    }
    keep_stamps = stamps_path != NULL;
    count = map_counters(counters_path);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);

    poller = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    int listener = listen_on(port), ending = signalfd(-1, &term, 0);
    int own[] = {timer, listener, ending, STDIN_FILENO};
    for (size_t i = 0; i < 4; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &own[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, own[i], &e); /* stdin may be a file, which epoll refuses: SIGTERM then */
    }
    for (int over = 0; !over;) {
        struct epoll_event ready[512];
        int n = epoll_wait(poller, ready, 512, -1);
        for (int i = 0; i < n; i++) {
            void *who = ready[i].data.ptr;
            uint64_t times;
            if (who == &own[0]) {
                if (read(timer, &times, sizeof times) < 0) continue;
            } else if (who == &own[1]) {
                welcome(listener);
            } else if (who == &own[2]) {
                over = 1;
            } else if (who == &own[3]) {
                over |= read(STDIN_FILENO, scratch, sizeof scratch) <= 0;
            } else if (ready[i].events & EPOLLOUT && !(ready[i].events & (EPOLLERR | EPOLLHUP))) {
                flush(who);
            } else {
                readable(who);
            }
        }
        beat();
        bury();
    }
    if (stamps_path) {
        FILE *to = fopen(stamps_path, "wb");
        if (!to || fwrite(stamps, sizeof *stamps, stamp_count, to) != stamp_count || fclose(to)) die(stamps_path);
    }
    return 0;
}
