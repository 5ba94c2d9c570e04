/* The hot path of a recorded span in C: encode attributes, put a span's record together, append a line to the journal.
 *
 * Python is the reference: `_encode.py` and `_writer.py` do all of this, and more, without this module. What is here
 * handles what nearly every record consists of and hands everything else back ("slow"), so there is no rule that only C
 * knows. tests/journal/test_native.py holds the two together.
 *
 * Two laws keep it safe in somebody else's program:
 *
 * - While a dictionary is walked nothing is called that can run Python code or let another thread in. Objects that the
 *   garbage collector tracks are not made either: making one can run finalizers. An exception is such an object, so the
 *   walk ends with the first, and what is being encoded then is held.
 * - A line is written and noted in one call, so no signal handler and no exception of one comes between the two.
 */

#include "../_native.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE "spanfold.journal._native"
#define SHORT_TEXT 64       /* as _SHORT_TEXT */
#define LONG_DIGITS 7       /* as _LONG_DIGITS */
#define LONG_NUMBER 10000000LL
#define MOST_TEXTS 4096     /* as _MAX_CACHED_KEYS */
#define ITEMS 32            /* JSON texts, and texts not seen before, of one call; with more Python does it */
#define LARGE_TEXT 16384    /* characters; Python copies what is longer less often */
#define DIGITS 21           /* of a 64-bit number with its sign */

typedef struct {
    PyTypeObject *fragment; /* the NamedTuple Fragment: data, json_keys, notes, is_clean */
    PyTypeObject *json_text;
    PyObject *no_notes;
    PyObject *dumps;        /* orjson's */
    PyObject *slow_fragment, *slow_own_span, *slow_started, *slow_join;
    PyObject *fresh_hash;   /* an empty SHA-256: a copy is made quicker than a new one */
    PyObject *monotonic;
    PyObject *self_key;     /* what stands between the structural attributes and the self time */
    PyObject *started_name, *parent_head;
    PyObject *middle;
    PyObject *copy, *update, *digest, *acquire, *release, *run_errands, *append_failed;
    PyObject *slow_span, *slow_event;
} Known;

static Known known;

/* -- a buffer that begins on the stack */

typedef struct {
    char *data;
    Py_ssize_t size, room;
    char first[4096];
} Buffer;

static void
begin(Buffer *b)
{
    b->data = b->first;
    b->size = 0;
    b->room = sizeof b->first;
}

static void
release(Buffer *b)
{
    if (b->data != b->first) {
        PyMem_Free(b->data);
    }
}

static int
grow(Buffer *b, Py_ssize_t more)
{
    if (more > PY_SSIZE_T_MAX / 2 - b->size) {
        return -1;
    }
    Py_ssize_t room = (b->size + more) + (b->size + more) / 2;
    char *data = PyMem_Malloc((size_t)room);
    if (data == NULL) {
        return -1;
    }
    memcpy(data, b->data, (size_t)b->size);
    release(b);
    b->data = data;
    b->room = room;
    return 0;
}

static inline int
put(Buffer *b, const char *text, Py_ssize_t size)
{
    if (size > b->room - b->size && grow(b, size) < 0) {
        return -1;
    }
    memcpy(b->data + b->size, text, (size_t)size);
    b->size += size;
    return 0;
}

#define PUT(buffer, literal) put(buffer, literal, sizeof(literal) - 1)

static inline int
put_bytes(Buffer *b, PyObject *bytes)
{
    return put(b, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
}

/* Write a number in decimal; return how many characters. */
static Py_ssize_t
decimal(char *to, long long number)
{
    char reversed[DIGITS];
    int n = 0, at = 0;
    unsigned long long rest = number < 0 ? 0ULL - (unsigned long long)number : (unsigned long long)number;
    do {
        reversed[n++] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (number < 0) {
        to[at++] = '-';
    }
    while (n) {
        to[at++] = reversed[--n];
    }
    return at;
}

static inline int
put_number(Buffer *b, long long number)
{
    char digits[DIGITS];
    return put(b, digits, decimal(digits, number));
}

/* -- the encoder */

typedef struct {
    PyObject_HEAD
    PyObject *keys;         /* key -> (encoded key, {short text -> encoded attribute}): what passed the gate */
    PyObject *json_fields;  /* keys of JSON texts -> the attribute that names them */
    PyObject *passes;
    Py_ssize_t texts;
} Encoder;

static PyMemberDef Encoder_members[] = {
    {"_keys", T_OBJECT_EX, offsetof(Encoder, keys), 0, NULL},
    {"_json_fields", T_OBJECT_EX, offsetof(Encoder, json_fields), 0, NULL},
    {"passes", T_OBJECT_EX, offsetof(Encoder, passes), 0, NULL},
    {"_n_texts", T_PYSSIZET, offsetof(Encoder, texts), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *
Encoder_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    return is_set_up(known.fragment, MODULE) ? type->tp_alloc(type, 0) : NULL;
}

static int
Encoder_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_members(self, Encoder_members, visit, arg);
}

static int
Encoder_clear(PyObject *self)
{
    return clear_members(self, Encoder_members);
}

static void
Encoder_dealloc(PyObject *self)
{
    end_object(self, Encoder_members);
}

static PyObject *
slow(PyObject *function, PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *all[16];
    if (nargs > 15) {
        PyErr_SetString(PyExc_TypeError, "spanfold: too many arguments");
        return NULL;
    }
    all[0] = self;
    memcpy(all + 1, args, (size_t)nargs * sizeof *args);
    return PyObject_Vectorcall(function, all, (size_t)nargs + 1, NULL);
}

/* One attribute whose text was not seen before; its encoded form lies in the buffer. */
typedef struct {
    PyObject *texts, *value;
    Py_ssize_t from, to;
} Unseen;

/* The JSON of a text or float; NULL without an exception when it has none, as a lone surrogate, or is large. */
static inline PyObject *
dumped(PyObject *value)
{
    PyObject *text;
    if (PyUnicode_Check(value) && PyUnicode_GET_LENGTH(value) > LARGE_TEXT) {
        return NULL;
    }
    /* Held, because making the exception for a surrogate may run a finalizer that takes it out of the dictionary. */
    Py_INCREF(value);
    text = PyObject_CallOneArg(known.dumps, value);
    Py_DECREF(value);
    if (text == NULL) {
        PyErr_Clear();
    }
    else if (!PyBytes_CheckExact(text)) {
        Py_CLEAR(text);
    }
    return text;
}

/* A scalar inside an array; 1 done, 0 Python's business, -1 no memory. */
static int
put_scalar(Buffer *b, PyObject *value)
{
    long long number;
    PyObject *text;
    int done;

    if (value == Py_True || value == Py_False) {
        return (value == Py_True ? PUT(b, "{\"boolValue\":true}") : PUT(b, "{\"boolValue\":false}")) < 0 ? -1 : 1;
    }
    if (PyUnicode_CheckExact(value)) {
        text = dumped(value);
        if (text == NULL) {
            return 0;
        }
        done = PUT(b, "{\"stringValue\":") < 0 || put_bytes(b, text) < 0 || PUT(b, "}") < 0 ? -1 : 1;
        Py_DECREF(text);
        return done;
    }
    if (as_number(value, &number)) {
        return PUT(b, "{\"intValue\":\"") < 0 || put_number(b, number) < 0 || PUT(b, "\"}") < 0 ? -1 : 1;
    }
    return 0;
}

/* One attribute, with its value's type; 1 done, 0 Python's business, -1 no memory. */
static int
put_attribute(Buffer *b, PyObject *prefix, PyObject *value, int *is_unseen)
{
    long long number;
    PyObject *text;
    int done;

    *is_unseen = 1;
    if (put_bytes(b, prefix) < 0) {
        return -1;
    }
    if (PyUnicode_CheckExact(value) || Py_TYPE(value) == known.json_text) {
        text = dumped(value);
        if (text == NULL) {
            return 0;
        }
        done = PUT(b, "stringValue\":") < 0 || put_bytes(b, text) < 0 || PUT(b, "}}") < 0 ? -1 : 1;
        Py_DECREF(text);
        return done;
    }
    if (value == Py_True || value == Py_False) {
        *is_unseen = 0;
        return (value == Py_True ? PUT(b, "boolValue\":true}}") : PUT(b, "boolValue\":false}}")) < 0 ? -1 : 1;
    }
    if (as_number(value, &number)) {
        *is_unseen = number <= -LONG_NUMBER || number >= LONG_NUMBER;
        return PUT(b, "intValue\":\"") < 0 || put_number(b, number) < 0 || PUT(b, "\"}}") < 0 ? -1 : 1;
    }
    if (PyFloat_CheckExact(value)) {
        text = dumped(value);
        if (text == NULL) {
            return 0;
        }
        *is_unseen = PyBytes_GET_SIZE(text) > LONG_DIGITS;
        done = PUT(b, "doubleValue\":") < 0 || put_bytes(b, text) < 0 || PUT(b, "}}") < 0 ? -1 : 1;
        Py_DECREF(text);
        return done;
    }
    if (PyTuple_CheckExact(value)) {
        if (PUT(b, "arrayValue\":{\"values\":[") < 0) {
            return -1;
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
            if (i && PUT(b, ",") < 0) {
                return -1;
            }
            done = put_scalar(b, PyTuple_GET_ITEM(value, i));
            if (done <= 0) {
                return done;
            }
        }
        return PUT(b, "]}}}") < 0 ? -1 : 1;
    }
    return 0;
}

static PyObject *
new_fragment(PyObject *data, PyObject *json_keys, PyObject *notes, int is_clean)
{
    PyObject *fragment = known.fragment->tp_alloc(known.fragment, 4);
    if (fragment != NULL) {
        PyTuple_SET_ITEM(fragment, 0, Py_NewRef(data));
        PyTuple_SET_ITEM(fragment, 1, Py_NewRef(json_keys));
        PyTuple_SET_ITEM(fragment, 2, Py_NewRef(notes));
        PyTuple_SET_ITEM(fragment, 3, Py_NewRef(is_clean ? Py_True : Py_False));
    }
    return fragment;
}

PyDoc_STRVAR(fragment_doc, "fragment(attributes, notes=None) -> Fragment: as `spanfold.journal._encode.Encoder.fragment`.");

static PyObject *
Encoder_fragment(Encoder *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *attributes = nargs ? args[0] : NULL, *notes = nargs > 1 ? args[1] : Py_None;
    PyObject *key, *value, *keys, *json_keys = NULL, *data = NULL, *fragment = NULL;
    PyObject *json[ITEMS];
    Unseen unseen[ITEMS];
    Py_ssize_t position = 0, n_json = 0, n_unseen = 0;
    Buffer all, doubtful;
    int is_clean = 1, done = 1, is_unseen;

    if (nargs > 2 || attributes == NULL || !PyDict_CheckExact(attributes) || self->keys == NULL
        || !PyDict_CheckExact(self->keys) || self->passes == NULL || (notes != Py_None && !PyDict_CheckExact(notes))) {
        return slow(known.slow_fragment, (PyObject *)self, args, nargs);
    }
    keys = Py_NewRef(self->keys);
    begin(&all);
    begin(&doubtful);
    while (done > 0 && PyDict_Next(attributes, &position, &key, &value)) {
        PyObject *entry, *prefix, *texts, *seen;
        int is_short;

        entry = PyUnicode_CheckExact(key) ? PyDict_GetItemWithError(keys, key) : NULL;
        if (entry == NULL || !PyTuple_CheckExact(entry) || PyTuple_GET_SIZE(entry) != 2) {
            PyErr_Clear();
            done = 0;
            break;
        }
        prefix = PyTuple_GET_ITEM(entry, 0);
        texts = PyTuple_GET_ITEM(entry, 1);
        if (all.size && PUT(&all, ",") < 0) {
            done = -1;
            break;
        }
        is_short = PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) <= SHORT_TEXT;
        if (is_short && (seen = PyDict_GetItemWithError(texts, value)) != NULL) {
            done = put_bytes(&all, seen) < 0 ? -1 : 1;
            continue;
        }
        Py_ssize_t from = all.size;
        done = put_attribute(&all, prefix, value, &is_unseen);
        if (done <= 0) {
            break;
        }
        if (is_unseen
            && ((doubtful.size && PUT(&doubtful, ",") < 0) || put(&doubtful, all.data + from, all.size - from) < 0)) {
            done = -1;
            break;
        }
        if (is_short) {
            if (n_unseen == ITEMS) {
                done = 0;
                break;
            }
            unseen[n_unseen++] = (Unseen){Py_NewRef(texts), Py_NewRef(value), from, all.size};
        }
        else if (Py_TYPE(value) == known.json_text) {
            if (n_json == ITEMS) {
                done = 0;
                break;
            }
            json[n_json++] = Py_NewRef(key);
        }
    }
    /* From here on Python code may run: nothing of the dictionary is held that is not ours. */
    if (done > 0) {
        if (doubtful.size) {
            PyObject *text = PyBytes_FromStringAndSize(doubtful.data, doubtful.size);
            PyObject *passes = Py_NewRef(self->passes); /* the gate may set another */
            PyObject *verdict = text == NULL ? NULL : PyObject_CallOneArg(passes, text);
            Py_DECREF(passes);
            Py_XDECREF(text);
            is_clean = verdict == NULL ? -1 : PyObject_IsTrue(verdict);
            Py_XDECREF(verdict);
            if (is_clean < 0) {
                goto out;
            }
        }
        if (is_clean) {
            for (Py_ssize_t i = 0; i < n_unseen; i++) {
                PyObject *part = PyBytes_FromStringAndSize(all.data + unseen[i].from, unseen[i].to - unseen[i].from);
                if (part == NULL || PyDict_SetItem(unseen[i].texts, unseen[i].value, part) < 0) {
                    Py_XDECREF(part);
                    goto out;
                }
                Py_DECREF(part);
            }
            self->texts += n_unseen;
            if (self->texts > MOST_TEXTS) { /* replaced, not cleared: another thread may be looking at it */
                PyObject *fresh = PyDict_New();
                if (fresh == NULL) {
                    goto out;
                }
                self->texts = 0;
                Py_SETREF(self->keys, fresh);
            }
        }
        json_keys = PyTuple_New(n_json);
        data = PyBytes_FromStringAndSize(all.data, all.size);
        if (json_keys == NULL || data == NULL) {
            goto out;
        }
        for (Py_ssize_t i = 0; i < n_json; i++) {
            PyTuple_SET_ITEM(json_keys, i, Py_NewRef(json[i]));
        }
        if (notes == Py_None || PyDict_GET_SIZE(notes) == 0) {
            notes = known.no_notes;
        }
        fragment = new_fragment(data, json_keys, notes, is_clean);
    }
    else if (done < 0) {
        PyErr_NoMemory();
    }
out:
    Py_XDECREF(json_keys);
    Py_XDECREF(data);
    for (Py_ssize_t i = 0; i < n_unseen; i++) {
        Py_DECREF(unseen[i].texts);
        Py_DECREF(unseen[i].value);
    }
    for (Py_ssize_t i = 0; i < n_json; i++) {
        Py_DECREF(json[i]);
    }
    release(&all);
    release(&doubtful);
    Py_DECREF(keys);
    return done ? fragment : slow(known.slow_fragment, (PyObject *)self, args, nargs);
}

/* A record of known parts: measured, then filled in one object. */

#define MOST_PIECES 32

typedef struct {
    const char *text[MOST_PIECES];
    Py_ssize_t size[MOST_PIECES];
    char digits[4][DIGITS];
    int n, numbers;
} Pieces;

static inline void
add(Pieces *p, const char *text, Py_ssize_t size)
{
    p->text[p->n] = text;
    p->size[p->n++] = size;
}

#define ADD(pieces, literal) add(pieces, literal, sizeof(literal) - 1)

static inline void
add_bytes(Pieces *p, PyObject *bytes)
{
    add(p, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
}

static inline void
add_number(Pieces *p, long long number)
{
    char *to = p->digits[p->numbers++];
    add(p, to, decimal(to, number));
}

static PyObject *
joined(const Pieces *p)
{
    Py_ssize_t size = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->size[i] > PY_SSIZE_T_MAX - size) {
            return PyErr_NoMemory();
        }
        size += p->size[i];
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (bytes != NULL) {
        char *to = PyBytes_AS_STRING(bytes);
        for (int i = 0; i < p->n; i++) {
            memcpy(to, p->text[i], (size_t)p->size[i]);
            to += p->size[i];
        }
    }
    return bytes;
}

/* Whether `object` is a Fragment that has what it should. */
static inline int
is_fragment(PyObject *object)
{
    return Py_TYPE(object) == known.fragment && PyTuple_GET_SIZE(object) == 4
        && PyBytes_CheckExact(PyTuple_GET_ITEM(object, 0)) && PyTuple_CheckExact(PyTuple_GET_ITEM(object, 1))
        && PyDict_CheckExact(PyTuple_GET_ITEM(object, 2));
}

#define DATA(fragment) PyTuple_GET_ITEM(fragment, 0)
#define JSON_KEYS(fragment) PyTuple_GET_ITEM(fragment, 1)
#define HAS_NOTES(fragment) (PyDict_GET_SIZE(PyTuple_GET_ITEM(fragment, 2)) != 0)

PyDoc_STRVAR(own_span_doc, "own_span(...) -> bytes: as `spanfold.journal._encode.Encoder.own_span`.");

static PyObject *
Encoder_own_span(Encoder *self, PyObject *const *args, Py_ssize_t nargs)
{
    long long start, end, own, status;
    PyObject *about = NULL, *bytes;
    Pieces p;

    p.n = p.numbers = 0;
    if (nargs != 12 || !PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) < 2
        || !PyBytes_CheckExact(PyTuple_GET_ITEM(args[0], 0)) || !PyBytes_CheckExact(PyTuple_GET_ITEM(args[0], 1))
        || !PyBytes_Check(args[1]) || !PyBytes_Check(args[2]) || !PyBytes_Check(args[3])
        || !as_number(args[4], &start) || !as_number(args[5], &end) || !as_number(args[6], &own)
        || !is_fragment(args[7]) || !is_fragment(args[8]) || HAS_NOTES(args[7]) || HAS_NOTES(args[8])
        || !as_number(args[9], &status) || status != 0
        || (args[11] != Py_None && !(PyList_CheckExact(args[11]) && PyList_GET_SIZE(args[11]) == 0))) {
        return slow(known.slow_own_span, (PyObject *)self, args, nargs);
    }
    PyObject *before = args[7], *fragment = args[8];
    if (PyTuple_GET_SIZE(JSON_KEYS(before)) || PyTuple_GET_SIZE(JSON_KEYS(fragment))) {
        PyObject *json_keys = PySequence_Concat(JSON_KEYS(before), JSON_KEYS(fragment));
        if (json_keys == NULL) {
            return NULL;
        }
        about = self->json_fields == NULL || !PyDict_CheckExact(self->json_fields)
            ? NULL
            : PyDict_GetItemWithError(self->json_fields, json_keys);
        Py_DECREF(json_keys);
        if (about == NULL || !PyBytes_CheckExact(about)) { /* the first time */
            PyErr_Clear();
            return slow(known.slow_own_span, (PyObject *)self, args, nargs);
        }
        Py_INCREF(about);
    }
    ADD(&p, "{\"traceId\":\"");
    add_bytes(&p, args[1]);
    ADD(&p, "\",\"spanId\":\"");
    add_bytes(&p, args[2]);
    ADD(&p, "\",\"parentSpanId\":\"");
    add_bytes(&p, args[3]);
    ADD(&p, "\",");
    add_bytes(&p, PyTuple_GET_ITEM(args[0], 0));
    ADD(&p, ",\"startTimeUnixNano\":\"");
    add_number(&p, start);
    ADD(&p, "\",\"endTimeUnixNano\":\"");
    add_number(&p, end);
    ADD(&p, "\",\"attributes\":[");
    add_bytes(&p, PyTuple_GET_ITEM(args[0], 1));
    add_bytes(&p, known.self_key);
    add_number(&p, own);
    ADD(&p, "\"}}");
    if (PyBytes_GET_SIZE(DATA(before))) {
        ADD(&p, ",");
        add_bytes(&p, DATA(before));
    }
    if (PyBytes_GET_SIZE(DATA(fragment))) {
        ADD(&p, ",");
        add_bytes(&p, DATA(fragment));
    }
    if (about != NULL) {
        ADD(&p, ",");
        add_bytes(&p, about);
    }
    ADD(&p, "]}");
    bytes = joined(&p);
    Py_XDECREF(about);
    return bytes;
}

PyDoc_STRVAR(started_doc, "started(...) -> bytes: as `spanfold.journal._encode.Encoder.started`.");

static PyObject *
Encoder_started(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    long long time;
    Pieces p;

    p.n = p.numbers = 0;
    if (nargs != 6 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1]) || !as_number(args[2], &time)
        || !PyBytes_Check(args[3]) || !PyBytes_Check(args[4]) || !is_fragment(args[5]) || HAS_NOTES(args[5])
        || PyTuple_GET_SIZE(JSON_KEYS(args[5]))) {
        return slow(known.slow_started, self, args, nargs);
    }
    ADD(&p, "{\"timeUnixNano\":\"");
    add_number(&p, time);
    add_bytes(&p, known.started_name);
    add_bytes(&p, args[3]);
    if (PyBytes_GET_SIZE(args[4])) {
        add_bytes(&p, known.parent_head);
        add_bytes(&p, args[4]);
        ADD(&p, "\"}}");
    }
    if (PyBytes_GET_SIZE(DATA(args[5]))) {
        ADD(&p, ",");
        add_bytes(&p, DATA(args[5]));
    }
    ADD(&p, "],\"flags\":1,\"traceId\":\"");
    add_bytes(&p, args[0]);
    ADD(&p, "\",\"spanId\":\"");
    add_bytes(&p, args[1]);
    ADD(&p, "\"}");
    return joined(&p);
}

PyDoc_STRVAR(join_doc, "join(first, second) -> Fragment: as `spanfold.journal._encode.PythonEncoder.join`.");

static PyObject *
Encoder_join(PyObject *unused, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *data, *json_keys, *fragment;
    Pieces p;

    p.n = p.numbers = 0;
    if (nargs != 2 || !is_fragment(args[0]) || !is_fragment(args[1]) || HAS_NOTES(args[0])) {
        return PyObject_Vectorcall(known.slow_join, args, (size_t)nargs, NULL);
    }
    if (!PyBytes_GET_SIZE(DATA(args[0])) || !PyBytes_GET_SIZE(DATA(args[1]))) {
        return Py_NewRef(args[PyBytes_GET_SIZE(DATA(args[0])) ? 0 : 1]);
    }
    add_bytes(&p, DATA(args[0]));
    ADD(&p, ",");
    add_bytes(&p, DATA(args[1]));
    data = joined(&p);
    json_keys = PySequence_Concat(JSON_KEYS(args[0]), JSON_KEYS(args[1]));
    fragment = data == NULL || json_keys == NULL
        ? NULL
        : new_fragment(data, json_keys, PyTuple_GET_ITEM(args[1], 2),
                       PyTuple_GET_ITEM(args[0], 3) == Py_True && PyTuple_GET_ITEM(args[1], 3) == Py_True);
    Py_XDECREF(data);
    Py_XDECREF(json_keys);
    return fragment;
}

static PyMethodDef Encoder_methods[] = {
    {"join", METHOD(Encoder_join), METH_FASTCALL | METH_STATIC, join_doc},
    {"fragment", METHOD(Encoder_fragment), METH_FASTCALL, fragment_doc},
    {"own_span", METHOD(Encoder_own_span), METH_FASTCALL, own_span_doc},
    {"started", METHOD(Encoder_started), METH_FASTCALL, started_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot Encoder_slots[] = {
    {Py_tp_doc, "The hot methods of an encoder; `spanfold.journal._encode` has the others."},
    {Py_tp_new, Encoder_new},
    {Py_tp_traverse, Encoder_traverse},
    {Py_tp_clear, Encoder_clear},
    {Py_tp_dealloc, Encoder_dealloc},
    {Py_tp_methods, Encoder_methods},
    {Py_tp_members, Encoder_members},
    {0, NULL},
};

static PyType_Spec Encoder_spec = {
    .name = "spanfold.journal._native.Encoder",
    .basicsize = sizeof(Encoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = Encoder_slots,
};

/* -- the end of a journal file */

typedef struct {
    PyObject_HEAD
    long long seq, size;
    PyObject *head;         /* hash of the last line, 64 hex digits */
    PyObject *torn;         /* (line, its number, size with it) of which a part may be in the file; or None */
    double next_check;
    long long device;       /* of the file that was opened; signed on macOS */
    unsigned long long inode;
    int fd;                 /* -1 when the file is not open, or not to be written to without looking */
} Tip;

static int
Tip_traverse(Tip *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
Tip_dealloc(Tip *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->head);
    Py_CLEAR(self->torn);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *
Tip_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    Tip *self = is_set_up(known.fragment, MODULE) ? (Tip *)type->tp_alloc(type, 0) : NULL;
    if (self != NULL) {
        self->fd = -1;
        self->head = PyBytes_FromStringAndSize(NULL, 0);
        if (self->head == NULL) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

/* SHA-256 of a line as hex digits. */
static PyObject *
hashed(PyObject *line)
{
    static const char digits[] = "0123456789abcdef";
    PyObject *head = NULL, *result, *raw;
    PyObject *hash = PyObject_CallMethodNoArgs(known.fresh_hash, known.copy);
    if (hash == NULL) {
        return NULL;
    }
    result = PyObject_CallMethodOneArg(hash, known.update, line);
    raw = result == NULL ? NULL : PyObject_CallMethodNoArgs(hash, known.digest);
    if (raw != NULL && PyBytes_CheckExact(raw)) {
        head = PyBytes_FromStringAndSize(NULL, 2 * PyBytes_GET_SIZE(raw));
        for (Py_ssize_t i = 0; head != NULL && i < PyBytes_GET_SIZE(raw); i++) {
            unsigned char byte = (unsigned char)PyBytes_AS_STRING(raw)[i];
            PyBytes_AS_STRING(head)[2 * i] = digits[byte >> 4];
            PyBytes_AS_STRING(head)[2 * i + 1] = digits[byte & 15];
        }
    }
    Py_XDECREF(result);
    Py_XDECREF(raw);
    Py_DECREF(hash);
    return head;
}

/* Cut off what a short write has written; 1 done, 0 not ours to cut since others have written behind it, -1 refused. */
static int
taken_back(int fd, Py_ssize_t written)
{
    struct stat st;
    off_t end = lseek(fd, 0, SEEK_CUR);
    if (end < (off_t)written || fstat(fd, &st) < 0) {
        return -1;
    }
    return st.st_size == end ? ftruncate(fd, end - (off_t)written) == 0 ? 1 : -1 : 0;
}

PyDoc_STRVAR(append_doc,
             "append(frame, body) -> bool\n\n"
             "Append a line and take note of it, both or nothing. False: Python has to, because the file is to be looked\n"
             "at first, or did not take all of it. OSError: A part of it may be in the file, see `torn`.");

/* The method: 1 done, 0 Python has to, -1 an exception. */
static int
append(Tip *self, PyObject *frame, PyObject *body)
{
    PyObject *line, *head, *now;
    Pieces p;
    Py_ssize_t size, written;
    double seconds;

    p.n = p.numbers = 0;
    if (self->fd < 0 || !PyTuple_Check(frame) || PyTuple_GET_SIZE(frame) != 3 || !PyBytes_CheckExact(PyTuple_GET_ITEM(frame, 0))
        || !PyBytes_CheckExact(PyTuple_GET_ITEM(frame, 1)) || !PyBytes_CheckExact(PyTuple_GET_ITEM(frame, 2))
        || !PyBytes_CheckExact(body) || self->head == NULL || !PyBytes_CheckExact(self->head)) {
        return 0;
    }
    now = PyObject_CallNoArgs(known.monotonic);
    if (now == NULL) {
        return -1;
    }
    seconds = PyFloat_AsDouble(now);
    Py_DECREF(now);
    if (!(seconds < self->next_check)) {
        return 0;
    }
    add_bytes(&p, PyTuple_GET_ITEM(frame, 0));
    add_number(&p, self->seq + 1);
    add_bytes(&p, known.middle);
    add_bytes(&p, self->head);
    add_bytes(&p, PyTuple_GET_ITEM(frame, 1));
    add_bytes(&p, body);
    add_bytes(&p, PyTuple_GET_ITEM(frame, 2));
    line = joined(&p);
    if (line == NULL) {
        return -1;
    }
    /* Before it is written: what can fail comes first. */
    head = hashed(line);
    if (head == NULL) {
        Py_DECREF(line);
        return -1;
    }
    size = PyBytes_GET_SIZE(line);
    int fd = self->fd;
    struct stat st;
    if (fstat(fd, &st) < 0 || (long long)st.st_dev != self->device || (unsigned long long)st.st_ino != self->inode) {
        /* The host closed it behind our back, and may have opened another file that got its number. */
        self->next_check = 0.0;
        Py_DECREF(line);
        Py_DECREF(head);
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    written = write(fd, PyBytes_AS_STRING(line), (size_t)size);
    Py_END_ALLOW_THREADS
    if (written != size) {
        /* Python writes it again and says what is wrong. Where others wrote behind us it looks for the file before. */
        int is_back = written > 0 ? taken_back(fd, written) : 1;
        int number = errno;
        Py_DECREF(head);
        if (is_back <= 0) {
            self->next_check = 0.0;
        }
        if (is_back < 0) {
            Py_XSETREF(self->torn, Py_BuildValue("(OLL)", line, self->seq + 1, self->size + size));
            if (self->torn != NULL) {
                errno = number;
                PyErr_SetFromErrno(PyExc_OSError);
            }
        }
        Py_DECREF(line);
        if (is_back < 0) {
            return -1;
        }
        return 0;
    }
    Py_DECREF(line);
    Py_SETREF(self->head, head);
    self->seq += 1;
    self->size += size;
    return 1;
}

static PyObject *
Tip_append(Tip *self, PyObject *const *args, Py_ssize_t nargs)
{
    int result = nargs == 2 ? append(self, args[0], args[1]) : 0;
    return result < 0 ? NULL : PyBool_FromLong(result);
}

static PyMethodDef Tip_methods[] = {
    {"append", METHOD(Tip_append), METH_FASTCALL, append_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Tip_members[] = {
    {"seq", T_LONGLONG, offsetof(Tip, seq), 0, NULL},
    {"size", T_LONGLONG, offsetof(Tip, size), 0, NULL},
    {"head", T_OBJECT_EX, offsetof(Tip, head), 0, NULL},
    {"torn", T_OBJECT, offsetof(Tip, torn), 0, NULL},
    {"next_check", T_DOUBLE, offsetof(Tip, next_check), 0, NULL},
    {"device", T_LONGLONG, offsetof(Tip, device), 0, NULL},
    {"inode", T_ULONGLONG, offsetof(Tip, inode), 0, NULL},
    {"descriptor", T_INT, offsetof(Tip, fd), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot Tip_slots[] = {
    {Py_tp_doc, "How far a journal file has come."},
    {Py_tp_new, Tip_new},
    {Py_tp_traverse, Tip_traverse},
    {Py_tp_dealloc, Tip_dealloc},
    {Py_tp_methods, Tip_methods},
    {Py_tp_members, Tip_members},
    {0, NULL},
};

static PyType_Spec Tip_spec = {
    .name = "spanfold.journal._native.Tip",
    .basicsize = sizeof(Tip),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = Tip_slots,
};

/* -- the writer */

typedef struct {
    PyObject_HEAD
    PyObject *lock, *file, *span_frame, *event_frame, *in_flight, *waiting, *errands;
    char busy, sealed;
} Writer;

static PyTypeObject *Tip_type;

static PyMemberDef Writer_members[] = {
    {"_lock", T_OBJECT_EX, offsetof(Writer, lock), 0, NULL},
    {"_file", T_OBJECT_EX, offsetof(Writer, file), 0, NULL},
    {"_span_frame", T_OBJECT_EX, offsetof(Writer, span_frame), 0, NULL},
    {"_event_frame", T_OBJECT_EX, offsetof(Writer, event_frame), 0, NULL},
    {"_in_flight", T_OBJECT_EX, offsetof(Writer, in_flight), 0, NULL},
    {"_waiting", T_OBJECT_EX, offsetof(Writer, waiting), 0, NULL},
    {"_errands", T_OBJECT_EX, offsetof(Writer, errands), 0, NULL},
    {"_busy", T_BOOL, offsetof(Writer, busy), 0, NULL},
    {"_sealed", T_BOOL, offsetof(Writer, sealed), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int
Writer_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_members(self, Writer_members, visit, arg);
}

static int
Writer_clear(PyObject *self)
{
    return clear_members(self, Writer_members);
}

static void
Writer_dealloc(PyObject *self)
{
    end_object(self, Writer_members);
}

static PyObject *
Writer_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (is_set_up(known.fragment, MODULE) && known.slow_span == NULL) {
        PyErr_SetString(PyExc_RuntimeError, MODULE ": `setup_writer` comes first.");
    }
    return PyErr_Occurred() ? NULL : type->tp_alloc(type, 0);
}

/* Whether a record may be appended right away: nothing waits, nothing is being written, the run is not over. */
static inline int
is_free(Writer *self)
{
    return !self->busy && !self->sealed && self->in_flight == Py_None && self->file != NULL
        && PyObject_TypeCheck(self->file, Tip_type) && self->waiting != NULL && PyObject_IsTrue(self->waiting) == 0;
}

/* Hand an exception that came in the middle to Python, which keeps the record and raises what is not the disk's. */
static int
failed(Writer *self, PyObject *body, PyObject *frame)
{
    PyObject *type, *error, *traceback, *result;
    take_exception(&type, &error, &traceback);
    result = PyObject_CallMethodObjArgs((PyObject *)self, known.append_failed, body, frame, error, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    Py_XDECREF(result);
    return result == NULL ? -1 : 1;
}

static PyObject *
write_record(Writer *self, PyObject *const *args, Py_ssize_t nargs, PyObject *frame, PyObject *in_python)
{
    PyObject *lock, *file;
    int result = 0;

    if (nargs > 2 && args[2] != Py_None) {
        frame = args[2];
    }
    if (nargs < 2 || nargs > 3 || args[1] != Py_True || frame == NULL || frame == Py_None || self->lock == NULL) {
        return slow(in_python, (PyObject *)self, args, nargs);
    }
    Py_INCREF(frame);
    lock = Py_NewRef(self->lock);
    if (called(lock, known.acquire) < 0) {
        result = -1;
        goto out;
    }
    /* While the lock is held no Python code runs: what a signal handler or finalizer records comes before or after it. */
    if (is_free(self)) {
        file = Py_NewRef(self->file);
        self->busy = 1; /* except where an error is told: what is recorded meanwhile waits, as in Python */
        result = append((Tip *)file, frame, args[0]);
        if (result < 0) {
            result = failed(self, args[0], frame);
        }
        self->busy = 0;
        Py_DECREF(file);
    }
    if (called(lock, known.release) < 0) {
        result = -1;
    }
out:
    Py_DECREF(lock);
    Py_DECREF(frame);
    if (result < 0) {
        return NULL;
    }
    if (result == 0) {
        return slow(in_python, (PyObject *)self, args, nargs);
    }
    if (self->errands != NULL && !self->busy && PyObject_IsTrue(self->errands) > 0) {
        return PyObject_CallMethodNoArgs((PyObject *)self, known.run_errands);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(span_doc, "span($self, body, is_clean, frame=None, /)\n--\n\nAppend one encoded span; see `PythonJournal.span`.");
PyDoc_STRVAR(event_doc, "event($self, body, is_clean, frame=None, /)\n--\n\nAppend one encoded log record; see `PythonJournal.event`.");

static PyObject *
Writer_span(Writer *self, PyObject *const *args, Py_ssize_t nargs)
{
    return write_record(self, args, nargs, self->span_frame, known.slow_span);
}

static PyObject *
Writer_event(Writer *self, PyObject *const *args, Py_ssize_t nargs)
{
    return write_record(self, args, nargs, self->event_frame, known.slow_event);
}

static PyMethodDef Writer_methods[] = {
    {"span", METHOD(Writer_span), METH_FASTCALL, span_doc},
    {"event", METHOD(Writer_event), METH_FASTCALL, event_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot Writer_slots[] = {
    {Py_tp_doc, "The state and the hot methods of a journal; `spanfold.journal._writer` has the others."},
    {Py_tp_new, Writer_new},
    {Py_tp_traverse, Writer_traverse},
    {Py_tp_clear, Writer_clear},
    {Py_tp_dealloc, Writer_dealloc},
    {Py_tp_methods, Writer_methods},
    {Py_tp_members, Writer_members},
    {0, NULL},
};

static PyType_Spec Writer_spec = {
    .name = "spanfold.journal._native.Writer",
    .basicsize = sizeof(Writer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = Writer_slots,
};

/* -- the module */

PyDoc_STRVAR(setup_doc, "setup(**parts): hand over what belongs to Python; once, before anything else.");

static PyObject *
setup(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {
        "fragment", "json_text", "no_notes", "dumps", "slow_fragment", "slow_own_span", "slow_started", "fresh_hash",
        "monotonic", "self_key", "started_name", "parent_head", "middle", "slow_join", NULL,
    };
    Known k = {0};
    if (!is_main(MODULE)) {
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "$O!O!O!OOOOOOSSSSO", names, &PyType_Type, &k.fragment, &PyType_Type, &k.json_text,
            &PyDict_Type, &k.no_notes, &k.dumps, &k.slow_fragment, &k.slow_own_span, &k.slow_started, &k.fresh_hash,
            &k.monotonic, &k.self_key, &k.started_name, &k.parent_head, &k.middle,
            &k.slow_join)) {
        return NULL;
    }
    struct {
        PyObject **to;
        const char *text;
    } interned[] = {
        {&k.copy, "copy"},       {&k.update, "update"},
        {&k.digest, "digest"},   {&k.acquire, "acquire"},
        {&k.release, "release"}, {&k.run_errands, "_run_errands"},
        {&k.append_failed, "_append_failed"},
    };
    for (size_t i = 0; i < sizeof interned / sizeof *interned; i++) {
        if ((*interned[i].to = PyUnicode_InternFromString(interned[i].text)) == NULL) {
            return NULL;
        }
    }
    /* Kept until the process ends, as the module is. */
    PyObject *kept[] = {
        (PyObject *)k.fragment, (PyObject *)k.json_text, k.no_notes, k.dumps, k.slow_fragment, k.slow_own_span,
        k.slow_started, k.fresh_hash, k.monotonic, k.self_key, k.started_name, k.parent_head, k.middle, k.slow_join,
    };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        Py_INCREF(kept[i]);
    }
    /* Journals of before, should this be the second time, go on with what they have. */
    k.slow_span = known.slow_span;
    k.slow_event = known.slow_event;
    known = k;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(setup_writer_doc, "setup_writer(slow_span, slow_event): hand over what a journal does in Python.");

static PyObject *
setup_writer(PyObject *module, PyObject *args)
{
    PyObject *span, *event;
    if (!is_set_up(known.fragment, MODULE) || !PyArg_ParseTuple(args, "OO", &span, &event)) {
        return NULL;
    }
    Py_XSETREF(known.slow_span, Py_NewRef(span));
    Py_XSETREF(known.slow_event, Py_NewRef(event));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"setup_writer", setup_writer, METH_VARARGS, setup_writer_doc},
    {"setup", METHOD(setup), METH_VARARGS | METH_KEYWORDS, setup_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "spanfold.journal._native",
    .m_doc = "The hot path of a recorded span in C.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    if (!is_main(MODULE)) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    PyObject *encoder = PyType_FromSpec(&Encoder_spec), *writer = PyType_FromSpec(&Writer_spec);
    Tip_type = (PyTypeObject *)PyType_FromSpec(&Tip_spec);
    if (module == NULL || encoder == NULL || writer == NULL || Tip_type == NULL
        || PyModule_AddObjectRef(module, "Encoder", encoder) < 0 || PyModule_AddObjectRef(module, "Writer", writer) < 0
        || PyModule_AddObjectRef(module, "Tip", (PyObject *)Tip_type) < 0) {
        Py_CLEAR(module);
    }
    Py_XDECREF(encoder);
    Py_XDECREF(writer);
    return module;
}
