/* Count the tokens of streams whose form Python has learned; read many connections in one call.

   Nothing is decided here. A `Lane` is one connection. While it is armed, a chunk of HTTP that holds exactly one event
   of the learned form is counted, and its text appended. The first byte of anything else goes back to Python, with all
   that follows it, and the lane is armed no more. Lanes that are not armed are only read. loadchaos/load/wire/native.py
   says what each value means.

   Limited API of Python 3.11, C11, Linux. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST_READY 512
#define MOST_ROUNDS 8
#define MOST_DIGITS 8
#define NS_PER_S 1000000000LL
#define TIMESTAMPNS 35 /* asm-generic/socket.h, as in sockets.py */

typedef struct {
    PyObject_HEAD
    int fd;
    int reading; /* an exchange waits for what arrives */
    int armed;
    int outstanding; /* pieces given back that Python has not fed yet */
    PyObject *owner, *begin, *end, *texts, *more_texts, *gaps; /* more_texts may be None */
    const char *begin_at, *end_at;
    Py_ssize_t begin_size, end_size;
    int64_t tokens, bytes, last_byte_ns, last_token_ns, largest_gap_ns, arrived_ns;
} Lane;

typedef struct {
    PyObject_HEAD
    int fd;
    int table_size;
    Lane **table; /* by descriptor */
    PyObject *decode, *lane_type;
    char *buffer;
    Py_ssize_t buffer_size;
    int per_octave;
    int64_t min_gap_ns;
} Poller;

/* What one call of `read` knows and finds. */
typedef struct {
    int64_t now_ns, ahead_ns, oldest_ns, shortest_gap_ns;
    int64_t arrivals;
    PyObject *handed, *owner;
} Round;

static int64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* ---- counting ---- */

/* core/histogram.py: bucket() */
static int64_t bucket(int64_t value_ns, int per_octave) {
    if (value_ns < 1) return 0;
    int exponent = 64 - __builtin_clzll((unsigned long long)value_ns);
    uint64_t scaled = (uint64_t)value_ns << (64 - exponent); /* the leading bit is at 63 */
    uint64_t step = (uint64_t)(((unsigned __int128)scaled * (2u * (unsigned)per_octave)) >> 64);
    return (int64_t)exponent * per_octave + (int64_t)step - (2 * per_octave - 1);
}

static int count_gap(PyObject *gaps, int64_t gap_ns, int per_octave) {
    PyObject *key = PyLong_FromLongLong(bucket(gap_ns, per_octave));
    if (!key) return -1;
    PyObject *old = PyDict_GetItemWithError(gaps, key); /* borrowed */
    PyObject *count = NULL;
    if (old || !PyErr_Occurred()) {
        long before = old ? PyLong_AsLong(old) : 0;
        if (before != -1 || !PyErr_Occurred()) count = PyLong_FromLong(before + 1);
    }
    int failed = !count || PyDict_SetItem(gaps, key, count) < 0;
    Py_XDECREF(count);
    Py_DECREF(key);
    return failed ? -1 : 0;
}

/* The text between begin and end as a new str; NULL without an error where Python has to look at it. */
static PyObject *token_text(const char *at, Py_ssize_t size, PyObject *decode) {
    int escaped = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)at[i];
        if (c < 0x20 || c == '"') {
            if (!escaped) return NULL;
            break; /* the quote may be an escaped one: the grammar of JSON is Python's */
        }
        escaped |= c == '\\';
    }
    PyObject *text = NULL;
    if (!escaped) {
        text = PyUnicode_DecodeUTF8(at, size, "strict");
        if (!text && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
        return text;
    }
    PyObject *raw = PyBytes_FromStringAndSize(at, size);
    if (!raw) return NULL;
    text = PyObject_CallFunctionObjArgs(decode, raw, NULL);
    Py_DECREF(raw);
    if (text && (!PyUnicode_Check(text) || !PyUnicode_GetLength(text))) Py_CLEAR(text); /* None or nothing */
    return text;
}

/* The size of one whole chunk at `at`, with its content; 0 where it is anything else. */
static Py_ssize_t whole_chunk(const char *at, Py_ssize_t left, const char **content, Py_ssize_t *size) {
    Py_ssize_t digits = 0, value = 0;
    for (; digits < left && digits <= MOST_DIGITS; digits++) {
        char c = at[digits];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) break;
        value = value * 16 + digit;
    }
    if (!digits || digits > MOST_DIGITS || !value || left - digits - 4 < value) return 0;
    if (at[digits] != '\r' || at[digits + 1] != '\n') return 0;
    *content = at + digits + 2;
    *size = value;
    return (*content)[value] == '\r' && (*content)[value + 1] == '\n' ? digits + value + 4 : 0;
}

/* Count what is as learned. The bytes counted, or -1 with an error. */
static Py_ssize_t count(Lane *lane, int64_t at_ns, const char *data, Py_ssize_t size, PyObject *decode, int per_octave) {
    Py_ssize_t used = 0, whole, length;
    const char *content;
    while (lane->armed && used < size && (whole = whole_chunk(data + used, size - used, &content, &length))) {
        Py_ssize_t text_size = length - lane->begin_size - lane->end_size;
        if (text_size <= 0 || memcmp(content, lane->begin_at, (size_t)lane->begin_size) ||
            memcmp(content + length - lane->end_size, lane->end_at, (size_t)lane->end_size))
            break;
        PyObject *text = token_text(content + lane->begin_size, text_size, decode);
        if (!text) {
            if (PyErr_Occurred()) return -1;
            break;
        }
        if (!lane->texts) { /* `decode` ran foreign code */
            Py_DECREF(text);
            break;
        }
        int failed = PyList_Append(lane->texts, text) < 0 ||
                     (lane->more_texts != Py_None && PyList_Append(lane->more_texts, text) < 0);
        Py_DECREF(text);
        if (failed) return -1;
        if (at_ns != lane->last_token_ns) { /* chunks of one packet are one arrival */
            int64_t gap_ns = at_ns - lane->last_token_ns;
            if (gap_ns > lane->largest_gap_ns) lane->largest_gap_ns = gap_ns;
            if (count_gap(lane->gaps, gap_ns, per_octave) < 0) return -1;
        }
        lane->last_token_ns = at_ns;
        lane->tokens++;
        used += whole;
    }
    if (used) {
        lane->bytes += used;
        lane->last_byte_ns = at_ns;
    }
    if (used < size) lane->armed = 0;
    return used;
}

/* ---- Lane ---- */

static void disarm(Lane *lane) {
    lane->armed = 0;
    Py_CLEAR(lane->begin);
    Py_CLEAR(lane->end);
    Py_CLEAR(lane->texts);
    Py_CLEAR(lane->more_texts);
    Py_CLEAR(lane->gaps);
}

static int lane_traverse(Lane *lane, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)Py_TYPE((PyObject *)lane));
    Py_VISIT(lane->owner);
    Py_VISIT(lane->texts);
    Py_VISIT(lane->more_texts);
    Py_VISIT(lane->gaps);
    return 0;
}

static int lane_clear(Lane *lane) {
    disarm(lane);
    Py_CLEAR(lane->owner);
    return 0;
}

static void lane_free(Lane *lane) {
    PyTypeObject *type = Py_TYPE((PyObject *)lane);
    PyObject_GC_UnTrack(lane);
    lane_clear(lane);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(lane);
    Py_DECREF(type);
}

static PyObject *lane_arm(Lane *lane, PyObject *args) {
    PyObject *begin, *end, *texts, *more_texts, *gaps;
    long long last_token_ns;
    if (!PyArg_ParseTuple(args, "SSO!OO!L:arm", &begin, &end, &PyList_Type, &texts, &more_texts, &PyDict_Type, &gaps,
                          &last_token_ns))
        return NULL;
    if (more_texts != Py_None && !PyList_Check(more_texts)) return PyErr_Format(PyExc_TypeError, "more_texts is no list");
    if (lane->tokens || lane->bytes) return PyErr_Format(PyExc_RuntimeError, "counts were not taken");
    disarm(lane);
    lane->begin = Py_NewRef(begin);
    lane->end = Py_NewRef(end);
    lane->texts = Py_NewRef(texts);
    lane->more_texts = Py_NewRef(more_texts);
    lane->gaps = Py_NewRef(gaps);
    lane->begin_at = PyBytes_AsString(begin);
    lane->begin_size = PyBytes_Size(begin);
    lane->end_at = PyBytes_AsString(end);
    lane->end_size = PyBytes_Size(end);
    lane->last_token_ns = lane->arrived_ns = last_token_ns;
    lane->largest_gap_ns = 0;
    lane->armed = 1;
    Py_RETURN_NONE;
}

static PyObject *lane_take(Lane *lane, PyObject *Py_UNUSED(none)) {
    if (!lane->bytes) Py_RETURN_NONE;
    PyObject *taken = Py_BuildValue("(LLLLL)", (long long)lane->tokens, (long long)lane->bytes, (long long)lane->last_byte_ns,
                                    (long long)lane->last_token_ns, (long long)lane->largest_gap_ns);
    if (taken) lane->tokens = lane->bytes = 0;
    return taken;
}

static PyObject *lane_disarm(Lane *lane, PyObject *Py_UNUSED(none)) {
    disarm(lane);
    Py_RETURN_NONE;
}

static PyObject *lane_fed(Lane *lane, PyObject *Py_UNUSED(none)) {
    if (lane->outstanding) lane->outstanding--;
    Py_RETURN_NONE;
}

static PyObject *lane_read(Lane *lane, PyObject *reading) {
    lane->reading = PyObject_IsTrue(reading);
    if (!lane->reading) disarm(lane);
    Py_RETURN_NONE;
}

static PyObject *lane_outstanding(Lane *lane, void *Py_UNUSED(closure)) { return PyLong_FromLong(lane->outstanding); }

static PyObject *lane_armed(Lane *lane, void *Py_UNUSED(closure)) { return PyBool_FromLong(lane->armed); }

static PyMethodDef lane_methods[] = {
    {"arm", (PyCFunction)lane_arm, METH_VARARGS, NULL},
    {"disarm", (PyCFunction)lane_disarm, METH_NOARGS, NULL},
    {"take", (PyCFunction)lane_take, METH_NOARGS, NULL},
    {"fed", (PyCFunction)lane_fed, METH_NOARGS, NULL},
    {"set_reading", (PyCFunction)lane_read, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lane_values[] = {
    {"outstanding", (getter)lane_outstanding, NULL, NULL, NULL},
    {"armed", (getter)lane_armed, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_dealloc, lane_free}, {Py_tp_traverse, lane_traverse}, {Py_tp_clear, lane_clear},
    {Py_tp_methods, lane_methods}, {Py_tp_getset, lane_values}, {0, NULL},
};

static PyType_Spec lane_spec = {
    "loadchaos.load.wire._native.Lane", sizeof(Lane), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, lane_slots,
};

/* ---- Poller ---- */

static PyObject *poller_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *names[] = {"decode", "buffer_bytes", "per_octave", "min_gap_ns", NULL};
    PyObject *decode;
    Py_ssize_t buffer_bytes;
    int per_octave;
    long long min_gap_ns;
    if (!PyArg_ParseTupleAndKeywords(args, named, "OniL:Poller", names, &decode, &buffer_bytes, &per_octave, &min_gap_ns)) return NULL;
    if (buffer_bytes < 1 || per_octave < 1) return PyErr_Format(PyExc_ValueError, "a size is not positive");
    Poller *it = (Poller *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!it) return NULL;
    it->fd = -1;
    PyObject *module = PyType_GetModule(type);
    it->lane_type = module ? PyObject_GetAttrString(module, "Lane") : NULL;
    it->decode = Py_NewRef(decode);
    it->buffer_size = buffer_bytes;
    it->per_octave = per_octave;
    it->min_gap_ns = min_gap_ns;
    it->buffer = PyMem_Malloc((size_t)buffer_bytes);
    if (!it->buffer && it->lane_type) PyErr_NoMemory();
    if (it->buffer && it->lane_type && (it->fd = epoll_create1(EPOLL_CLOEXEC)) < 0) PyErr_SetFromErrno(PyExc_OSError);
    if (it->fd < 0) Py_CLEAR(it);
    return (PyObject *)it;
}

static void close_poller(Poller *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    Lane **table = p->table;
    int size = p->table_size;
    p->table = NULL;
    p->table_size = 0;
    for (int fd = 0; fd < size; fd++) Py_XDECREF((PyObject *)table[fd]);
    PyMem_Free(table);
}

static void poller_free(Poller *p) {
    PyTypeObject *type = Py_TYPE((PyObject *)p);
    PyObject_GC_UnTrack(p);
    close_poller(p);
    PyMem_Free(p->buffer);
    Py_XDECREF(p->decode);
    Py_XDECREF(p->lane_type);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(p);
    Py_DECREF(type);
}

static int poller_traverse(Poller *p, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)Py_TYPE((PyObject *)p));
    Py_VISIT(p->lane_type);
    Py_VISIT(p->decode);
    for (int fd = 0; fd < p->table_size; fd++) Py_VISIT((PyObject *)p->table[fd]);
    return 0;
}

static int poller_clear(Poller *p) {
    close_poller(p);
    return 0;
}

static PyObject *poller_lane(Poller *p, PyObject *args) {
    int fd;
    if (!PyArg_ParseTuple(args, "i:lane", &fd)) return NULL;
    PyTypeObject *type = (PyTypeObject *)p->lane_type;
    Lane *lane = (Lane *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!lane) return NULL;
    lane->fd = fd;
    return (PyObject *)lane;
}

static int watch(Poller *p, int how, int fd) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.fd = fd};
    if (epoll_ctl(p->fd, how, fd, &e) == 0) return 0;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static int is_lane(Poller *p, PyObject *it) {
    if ((PyObject *)Py_TYPE(it) == p->lane_type) return 1;
    PyErr_SetString(PyExc_TypeError, "a Lane is needed");
    return 0;
}

static PyObject *poller_start(Poller *p, PyObject *args) {
    PyObject *it, *owner;
    if (!PyArg_ParseTuple(args, "OO:start", &it, &owner) || !is_lane(p, it)) return NULL;
    int fd = ((Lane *)it)->fd;
    if (fd < 0 || p->fd < 0) return PyErr_Format(PyExc_ValueError, "it is closed");
    if (fd >= p->table_size) {
        int size = fd < 64 ? 128 : fd * 2;
        Lane **table = PyMem_Realloc(p->table, (size_t)size * sizeof *table);
        if (!table) return PyErr_NoMemory();
        memset(table + p->table_size, 0, (size_t)(size - p->table_size) * sizeof *table);
        p->table = table;
        p->table_size = size;
    }
    if (watch(p, EPOLL_CTL_ADD, fd) < 0) return NULL;
    PyObject *before = (PyObject *)p->table[fd];
    p->table[fd] = (Lane *)Py_NewRef(it);
    Py_XDECREF(before);
    before = ((Lane *)it)->owner;
    ((Lane *)it)->owner = Py_NewRef(owner);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *poller_stop(Poller *p, PyObject *it) {
    if (!is_lane(p, it)) return NULL;
    Lane *lane = (Lane *)it;
    if (lane->fd >= 0 && lane->fd < p->table_size && p->table[lane->fd] == lane) {
        struct epoll_event unused = {0};
        epoll_ctl(p->fd, EPOLL_CTL_DEL, lane->fd, &unused); /* a closed one is gone already */
        p->table[lane->fd] = NULL;
        Py_CLEAR(lane->owner);
        Py_DECREF(it);
    }
    Py_RETURN_NONE;
}

/* sockets.py: StampClock.arrival() */
static int64_t arrival(Round *round, struct msghdr *message) {
    struct cmsghdr *c = CMSG_FIRSTHDR(message);
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != TIMESTAMPNS) return monotonic_ns();
    struct timespec t;
    memcpy(&t, CMSG_DATA(c), sizeof t);
    int64_t at_ns = t.tv_sec * NS_PER_S + t.tv_nsec + round->ahead_ns;
    if (at_ns >= round->now_ns) round->now_ns = monotonic_ns(); /* it came while others were read */
    return round->now_ns - round->oldest_ns < at_ns && at_ns < round->now_ns ? at_ns : round->now_ns;
}

/* Give back a piece; takes the reference to `data`. */
static int hand(Round *round, Lane *lane, int64_t at_ns, PyObject *data) {
    PyObject *item = data ? Py_BuildValue("(LON)", (long long)at_ns, round->owner, data) : NULL;
    if (!item) return -1;
    int failed = PyList_Append(round->handed, item) < 0;
    Py_DECREF(item);
    if (!failed) lane->outstanding++;
    return failed ? -1 : 0;
}

static int read_lane(Poller *p, Round *round, Lane *lane, uint32_t events) {
    for (;;) {
        if (!lane->reading) { /* nobody asked: the bytes stay where they are */
            PyObject *item = Py_BuildValue("(iOO)", 0, round->owner, Py_None);
            int failed = !item || PyList_Append(round->handed, item) < 0;
            Py_XDECREF(item);
            return failed ? -1 : 0;
        }
        union { char bytes[CMSG_SPACE(sizeof(struct timespec))]; struct cmsghdr aligned; } control;
        struct iovec part = {p->buffer, (size_t)p->buffer_size};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t size = recvmsg(lane->fd, &message, MSG_DONTWAIT);
        if (size < 0 && errno == EINTR) continue;
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (size < 0) return hand(round, lane, monotonic_ns(), PyObject_CallFunction(PyExc_OSError, "is", errno, strerror(errno)));
        if (size == 0) return hand(round, lane, monotonic_ns(), PyBytes_FromStringAndSize(NULL, 0));
        int64_t at_ns = arrival(round, &message);
        Py_ssize_t used = lane->armed ? count(lane, at_ns, p->buffer, size, p->decode, p->per_octave) : 0;
        if (used < 0) return -1;
        if (used < size && hand(round, lane, at_ns, PyBytes_FromStringAndSize(p->buffer + used, size - used)) < 0) return -1;
        if (used == size) {
            int64_t gap_ns = at_ns - lane->arrived_ns;
            round->arrivals++;
            if (gap_ns > p->min_gap_ns && gap_ns < round->shortest_gap_ns) round->shortest_gap_ns = gap_ns;
        }
        lane->arrived_ns = at_ns;
        if (size == p->buffer_size) return watch(p, EPOLL_CTL_MOD, lane->fd); /* others first: it is told of again */
        if (!(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) return 0; /* all is read: what comes next is told of */
    }
}

static PyObject *poller_read(Poller *p, PyObject *args) {
    long long ahead_ns, oldest_ns;
    if (!PyArg_ParseTuple(args, "LL:read", &ahead_ns, &oldest_ns)) return NULL;
    struct epoll_event ready[MOST_READY];
    Round round = {.now_ns = monotonic_ns(), .ahead_ns = ahead_ns, .oldest_ns = oldest_ns, .shortest_gap_ns = INT64_MAX};
    if (!(round.handed = PyList_New(0))) return NULL;
    int n = MOST_READY;
    for (int times = 0; n == MOST_READY && times < MOST_ROUNDS; times++) {
        n = epoll_wait(p->fd, ready, MOST_READY, 0);
        int failed = n < 0 && errno != EINTR;
        if (failed) PyErr_SetFromErrno(PyExc_OSError);
        for (int i = 0; i < n && !failed; i++) {
            int fd = ready[i].data.fd;
            Lane *lane = fd < p->table_size ? p->table[fd] : NULL;
            if (!lane) continue;
            round.owner = Py_NewRef(lane->owner);
            Py_INCREF((PyObject *)lane);
            failed = read_lane(p, &round, lane, ready[i].events) < 0;
            Py_DECREF((PyObject *)lane);
            Py_DECREF(round.owner);
        }
        if (failed) {
            Py_DECREF(round.handed);
            return NULL;
        }
    }
    return Py_BuildValue("(NLL)", round.handed, (long long)round.arrivals, (long long)round.shortest_gap_ns);
}

/* What `read` does with bytes once it has them, for tests. */
static PyObject *poller_count(Poller *p, PyObject *args) {
    PyObject *it;
    long long at_ns;
    const char *data;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OLy#:count", &it, &at_ns, &data, &size) || !is_lane(p, it)) return NULL;
    Py_ssize_t used = ((Lane *)it)->armed ? count((Lane *)it, at_ns, data, size, p->decode, p->per_octave) : 0;
    return used < 0 ? NULL : PyLong_FromSsize_t(used);
}

static PyObject *poller_bucket(Poller *p, PyObject *value) {
    long long ns = PyLong_AsLongLong(value);
    return ns == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(bucket(ns, p->per_octave));
}

static PyObject *poller_fileno(Poller *p, PyObject *Py_UNUSED(none)) { return PyLong_FromLong(p->fd); }

static PyObject *poller_close(Poller *p, PyObject *Py_UNUSED(none)) {
    close_poller(p);
    Py_RETURN_NONE;
}

static PyMethodDef poller_methods[] = {
    {"lane", (PyCFunction)poller_lane, METH_VARARGS, NULL},
    {"start", (PyCFunction)poller_start, METH_VARARGS, NULL},
    {"stop", (PyCFunction)poller_stop, METH_O, NULL},
    {"read", (PyCFunction)poller_read, METH_VARARGS, NULL},
    {"count", (PyCFunction)poller_count, METH_VARARGS, NULL},
    {"bucket", (PyCFunction)poller_bucket, METH_O, NULL},
    {"fileno", (PyCFunction)poller_fileno, METH_NOARGS, NULL},
    {"close", (PyCFunction)poller_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot poller_slots[] = {
    {Py_tp_new, poller_new}, {Py_tp_dealloc, poller_free}, {Py_tp_traverse, poller_traverse},
    {Py_tp_clear, poller_clear}, {Py_tp_methods, poller_methods}, {0, NULL},
};

static PyType_Spec poller_spec = {
    "loadchaos.load.wire._native.Poller", sizeof(Poller), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, poller_slots,
};

static int fill(PyObject *module) {
    PyType_Spec *specs[] = {&lane_spec, &poller_spec};
    for (int i = 0; i < 2; i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, specs[i], NULL);
        int failed = !type || PyModule_AddType(module, (PyTypeObject *)type) < 0;
        Py_XDECREF(type);
        if (failed) return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
