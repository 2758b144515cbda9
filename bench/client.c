/* The client in C of the benches: what a request and a streamed event cost with no interpreter between.

   cc -O2 [-DTLS -lssl -lcrypto] -o client client.c
   client HOST PORT USERS REQUESTS STREAM(0|1) STAGGER_US BODY_FILE OUT_FILE TLS(0|1)

   Users send one request after the other on a connection each, and begin STAGGER_US apart. OUT_FILE and OUT_FILE with
   .marks in place of its suffix are those of bench/clients/common.py. The end of a stream (-1) has the
   time at which its request was sent. One thread, epoll. Certificates are not checked. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/ssl.h>
#endif

#define CARRY 1024
#define TOKEN "\"content\":\" "

struct user {
    int fd;
    int64_t left; /* bytes of a whole answer still to come, -1 before its head */
    int64_t sent_ns;
    size_t carried, marks, marks_size;
    int64_t (*mark)[2];
    char carry[CARRY];
#ifdef TLS
    SSL *ssl;
#endif
};

static const char *host, *body_text;
static int port, streaming, use_tls, poller;
static long users, requests, begun, ended, failed;
static char *request;
static size_t request_length;
static int64_t (*all)[2];
static size_t all_count, all_size;
static char scratch[CARRY + (1 << 16)];
#ifdef TLS
static SSL_CTX *tls;
#endif

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void push(int64_t (**list)[2], size_t *count, size_t *size, int64_t server_ns, int64_t own_ns) {
    if (*count == *size) {
        *size = *size ? *size * 2 : 64;
        if (!(*list = realloc(*list, *size * sizeof **list))) die("memory for marks");
    }
    (*list)[*count][0] = server_ns;
    (*list)[(*count)++][1] = own_ns;
}

static ssize_t take(struct user *u, char *to, size_t most) {
#ifdef TLS
    if (u->ssl) {
        int n = SSL_read(u->ssl, to, (int)most);
        if (n > 0) return n;
        int e = SSL_get_error(u->ssl, n);
        return e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE ? -1 : 0;
    }
#endif
    ssize_t n = recv(u->fd, to, most, 0);
    return n >= 0 ? n : errno == EAGAIN ? -1 : 0;
}

static int send_all(struct user *u) {
    size_t sent = 0;
    while (sent < request_length) {
        ssize_t n;
#ifdef TLS
        if (u->ssl) {
            n = SSL_write(u->ssl, request + sent, (int)(request_length - sent));
            if (n <= 0 && SSL_get_error(u->ssl, (int)n) == SSL_ERROR_WANT_WRITE) continue;
        } else
#endif
            n = send(u->fd, request + sent, request_length - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) continue; /* a long body: the server reads it at once */
        if (n <= 0) return 0;
        sent += (size_t)n;
    }
    return 1;
}

static void next(struct user *u) {
    if (begun++ >= requests) {
        close(u->fd);
        u->fd = -1;
        return;
    }
    u->left = -1;
    u->carried = 0;
    u->sent_ns = now_ns();
    if (!send_all(u)) failed++;
}

static void over(struct user *u) {
    ended++;
    if (streaming) {
        for (size_t i = 0; i < u->marks; i++) push(&all, &all_count, &all_size, u->mark[i][0], u->mark[i][1]);
        push(&all, &all_count, &all_size, -1, u->sent_ns);
        u->marks = 0;
    }
    next(u);
}

/* Bytes of a stream: the token of each whole line, and what is left of the last one. 1 when the stream is over. */
static int lines(struct user *u, const char *text, size_t length, int64_t at_ns) {
    const char *end = text + length, *token = text;
    while ((token = memmem(token, (size_t)(end - token), TOKEN, sizeof TOKEN - 1)) && token + sizeof TOKEN + 18 < end) {
        push(&u->mark, &u->marks, &u->marks_size, strtoll(token + sizeof TOKEN - 1, NULL, 10), at_ns);
        token += sizeof TOKEN;
    }
    if (length >= 7 && !memcmp(end - 7, "\r\n0\r\n\r\n", 7)) return 1;
    const char *last = memrchr(text, '\n', length);
    last = last ? last + 1 : text;
    if (end - last > CARRY || last == end) last = end - (length < 6 ? length : 6); /* enough to know the end by */
    u->carried = (size_t)(end - last);
    memcpy(u->carry, last, u->carried);
    return 0;
}

static int whole(struct user *u, const char *text, size_t length) {
    if (u->left < 0) {
        const char *end = memmem(text, length, "\r\n\r\n", 4);
        const char *said = end ? strcasestr(text, "content-length:") : NULL;
        if (!said || said > end) return 0;
        u->left = (end + 4 - text) + strtoll(said + 15, NULL, 10);
    }
    u->left -= (int64_t)length;
    return u->left <= 0;
}

static void readable(struct user *u) {
    for (;;) {
        memcpy(scratch, u->carry, u->carried);
        ssize_t n = take(u, scratch + u->carried, sizeof scratch - CARRY - 1);
        if (n < 0) return;
        if (n == 0) {
            failed++;
            close(u->fd);
            u->fd = -1;
            return;
        }
        int64_t at_ns = now_ns();
        size_t length = u->carried + (size_t)n;
        scratch[length] = 0;
        if (streaming ? lines(u, scratch, length, at_ns) : whole(u, scratch, length)) {
            over(u);
            return; /* epoll tells of more */
        }
#ifdef TLS
        if (u->ssl && SSL_pending(u->ssl)) continue;
#endif
        if ((size_t)n < sizeof scratch - CARRY - 1) return;
    }
}

static void open_one(struct user *u) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    inet_pton(AF_INET, host, &a.sin_addr);
    u->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(u->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(u->fd, (struct sockaddr *)&a, sizeof a)) die("connect");
#ifdef TLS
    if (use_tls) {
        u->ssl = SSL_new(tls);
        SSL_set_fd(u->ssl, u->fd);
        if (SSL_connect(u->ssl) != 1) die("TLS handshake");
    }
#endif
    fcntl(u->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = u};
    epoll_ctl(poller, EPOLL_CTL_ADD, u->fd, &e);
    next(u);
}

static char *file(const char *path, size_t *length) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) die(path);
    *length = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*length + 1);
    if (!text || fread(text, 1, *length, f) != *length) die(path);
    fclose(f);
    return text;
}

static void write_out(const char *path) {
    FILE *f = fopen(path, "w");
    if (!f || fprintf(f, "{\"ended\": %ld, \"failed\": %ld}", ended, failed) < 0 || fclose(f)) die(path);
    char marks[4096];
    const char *dot = strrchr(path, '.');
    snprintf(marks, sizeof marks, "%.*s.marks", (int)(dot ? dot - path : (long)strlen(path)), path);
    if (!(f = fopen(marks, "wb")) || (all_count && fwrite(all, sizeof *all, all_count, f) != all_count) || fclose(f)) die(marks);
}

int main(int argc, char **argv) {
    if (argc != 10) return fputs("see the head of client.c for the arguments\n", stderr), 2;
    host = argv[1], port = atoi(argv[2]), users = atol(argv[3]), requests = atol(argv[4]), streaming = atoi(argv[5]);
    int64_t stagger_ns = atoll(argv[6]) * 1000;
    size_t body_length;
    body_text = file(argv[7], &body_length);
    use_tls = atoi(argv[9]);
#ifdef TLS
    tls = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
#else
    if (use_tls) return fputs("this client was compiled without TLS\n", stderr), 2;
#endif
    if (!(request = malloc(body_length + 512))) die("memory for the request");
    request_length = (size_t)sprintf(request,
                                     "POST /v1/chat/completions HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\n"
                                     "Accept: text/event-stream, application/json\r\nContent-Length: %zu\r\n\r\n",
                                     host, port, body_length);
    memcpy(request + request_length, body_text, body_length);
    request_length += body_length;
    poller = epoll_create1(0);
    struct user *list = calloc((size_t)users, sizeof *list);
    if (!list) die("memory for users");
    int64_t start_ns = now_ns();
    for (long started = 0; ended + failed < requests;) {
        int64_t wait_ns = -1;
        while (started < users && (wait_ns = start_ns + started * stagger_ns - now_ns()) <= 0) open_one(&list[started++]);
        struct epoll_event ready[512];
        int n = epoll_wait(poller, ready, 512, started < users ? (int)(wait_ns / 1000000 + 1) : -1);
        for (int i = 0; i < n; i++) readable(ready[i].data.ptr);
    }
    write_out(argv[8]);
    return 0;
}
