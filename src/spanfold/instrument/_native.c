/* The life of a span in C: start, fields, announcement, becoming current, end.
 *
 * Python is the reference (`_span.py`, `_facts.py`, `_own_time.py`): whatever is unusual about a span is handed to the method there.
 * The state lies in the object's own memory, where both find it: a method of `PythonSpan` reads and sets the same members.
 *
 * No signal handler runs between two steps in here, except inside of what is called. What is called may run any code, so
 * each object used after a call is held.
 */

#include "../_native.h"

#define MODULE "spanfold.instrument._native"
#define CONTENT_KEYS 16     /* at most so many of a span's attributes are content */
#define MOST_PERIODS 512    /* as _MAX_PERIODS */

typedef struct {
    PyObject *no_told, *empty_fragment;
    PyObject *span_key, *context, *get_context, *set_context;
    PyObject *slow_start, *span_id, *time_ns, *perf, *lost;
    PyObject *guard;            /* whose `lock` protects the counters of children */
    PyObject *field_keys, *attribute_key, *content_keys;
} Known;

static Known known;
static long generation;         /* how often this process was forked */

/* Names of attributes and methods, interned. */
#define NAMES(X) \
    X(journal) X(encoder) X(memo) X(open_spans) X(is_watched) X(is_mirrored) X(recorded) X(trace_hex) X(kind) X(name) \
    X(depth) X(lock) X(acquire) X(release) X(fragment) X(join) X(started) X(own_span) X(passes) X(event) X(span) X(leave) \
    X(ended_by) X(_id) X(_places_of) X(_finish) X(_end_failed) X(_child_started) X(_child_ended) X(_fold_periods) \
    X(_self_ns) X(_show_end) X(_set_cycle) X(_store) X(end_time)

#define DECLARE(name) static PyObject *s_##name;
NAMES(DECLARE)

typedef struct {
    PyObject_HEAD
    PyObject *run, *name, *kind, *stage, *cycle, *otel_kind, *depth, *parent;
    PyObject *trace, *id, *parent_id;
    PyObject *start_ns, *mono;
    PyObject *before, *attributes, *told, *notes, *links;
    PyObject *places, *frame, *mirrored;
    PyObject *context, *previous, *span_context;
    PyObject *ended, *status, *status_message, *seen_error;
    PyObject *period_start, *covered_ns, *folded_ns, *floor, *periods, *extra;
    long generation, open_children;
    char scoped, entered, retroactive, is_recorded, is_moved;
} Span;

static PyTypeObject *Span_type;

#define IS_SPAN(object) PyObject_TypeCheck(object, Span_type)

static PyMemberDef Span_members[] = {
#define OBJECT(name, member) {name, T_OBJECT_EX, offsetof(Span, member), 0, NULL}
    OBJECT("run", run),
    OBJECT("name", name),
    OBJECT("kind", kind),
    OBJECT("stage", stage),
    OBJECT("cycle", cycle),
    OBJECT("otel_kind", otel_kind),
    OBJECT("depth", depth),
    OBJECT("parent", parent),
    OBJECT("_trace", trace),
    OBJECT("_id", id),
    OBJECT("_parent_id", parent_id),
    OBJECT("start_ns", start_ns),
    OBJECT("_mono", mono),
    OBJECT("_before", before),
    OBJECT("_attributes", attributes),
    OBJECT("_told", told),
    OBJECT("_notes", notes),
    OBJECT("_links", links),
    OBJECT("_places", places),
    OBJECT("frame", frame),
    OBJECT("mirrored", mirrored),
    OBJECT("_context", context),
    OBJECT("_previous", previous),
    OBJECT("_span_context", span_context),
    OBJECT("ended", ended),
    OBJECT("_status", status),
    OBJECT("_status_message", status_message),
    OBJECT("_seen_error", seen_error),
    OBJECT("_period_start", period_start),
    OBJECT("_covered_ns", covered_ns),
    OBJECT("_folded_ns", folded_ns),
    OBJECT("_floor", floor),
    OBJECT("_periods", periods),
    OBJECT("_extra", extra),
#undef OBJECT
    {"_generation", T_LONG, offsetof(Span, generation), 0, NULL},
    {"_open_children", T_LONG, offsetof(Span, open_children), 0, NULL},
    {"_scoped", T_BOOL, offsetof(Span, scoped), 0, NULL},
    {"_entered", T_BOOL, offsetof(Span, entered), 0, NULL},
    {"_retroactive", T_BOOL, offsetof(Span, retroactive), 0, NULL},
    {"_is_recorded", T_BOOL, offsetof(Span, is_recorded), 0, NULL},
    {"_is_moved", T_BOOL, offsetof(Span, is_moved), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* -- the object */

static int
Span_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_members(self, Span_members, visit, arg);
}

static int
Span_clear(PyObject *self)
{
    return clear_members(self, Span_members);
}

static void
Span_dealloc(PyObject *self)
{
    end_object(self, Span_members);
}

static PyObject *zero, *empty_text;

static PyObject *
new_span(PyTypeObject *type)
{
    if (!is_set_up(known.no_told, MODULE)) {
        return NULL;
    }
    Span *self = (Span *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    /* What most spans never set. */
    self->parent = Py_NewRef(Py_None);
    self->ended = Py_NewRef(Py_False);
    self->status = Py_NewRef(zero);
    self->status_message = Py_NewRef(empty_text);
    self->seen_error = Py_NewRef(Py_None);
    self->told = Py_NewRef(known.no_told);
    self->notes = Py_NewRef(Py_None);
    self->links = Py_NewRef(Py_None);
    self->places = Py_NewRef(Py_None);
    self->frame = Py_NewRef(Py_None);
    self->mirrored = Py_NewRef(Py_None);
    self->context = Py_NewRef(Py_None);
    self->previous = Py_NewRef(Py_None);
    self->span_context = Py_NewRef(Py_None);
    self->period_start = Py_NewRef(zero);
    self->covered_ns = Py_NewRef(zero);
    self->folded_ns = Py_NewRef(zero);
    self->floor = Py_NewRef(zero);
    self->periods = Py_NewRef(Py_None);
    self->extra = Py_NewRef(Py_None);
    return (PyObject *)self;
}

static PyObject *
Span_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    return new_span(type);
}

/* -- small things */

/* Whether the object was started and nothing was deleted from it since; else an error. */
static int
is_whole(Span *self)
{
    for (PyMemberDef *member = Span_members; member->type == T_OBJECT_EX; member++) {
        if (*(PyObject **)((char *)self + member->offset) == NULL) {
            PyErr_Format(PyExc_AttributeError, "spanfold: this span has no %s; it was never started", member->name);
            return 0;
        }
    }
    return 1;
}

static inline void
take(PyObject **member, PyObject *owned)
{
    PyObject *before = *member;
    *member = owned;
    Py_XDECREF(before);
}

static inline void
set(PyObject **member, PyObject *borrowed)
{
    take(member, Py_NewRef(borrowed));
}

static int
is_true(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) {
        return -1;
    }
    int answer = value == Py_True ? 1 : value == Py_False ? 0 : PyObject_IsTrue(value);
    Py_DECREF(value);
    return answer;
}

/* Call and forget what is returned. */
static inline int
done(PyObject *result)
{
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Call a method with what may be members of a span: a method may replace or delete the very members it is given. */
static PyObject *
call_holding(PyObject *name, PyObject *const *all, size_t n)
{
    PyObject *result;
    for (size_t i = 0; i < n; i++) {
        if (all[i] == NULL) {
            PyErr_SetString(PyExc_AttributeError, "spanfold: this span lacks a part that it was started with");
            return NULL;
        }
    }
    for (size_t i = 0; i < n; i++) {
        Py_INCREF(all[i]);
    }
    result = PyObject_VectorcallMethod(name, all, n, NULL);
    for (size_t i = 0; i < n; i++) {
        Py_DECREF(all[i]);
    }
    return result;
}

/* An `Exception` of ours ends here, counted; anything else goes on. */
static int
losing_only(const char *what)
{
    PyObject *type, *error, *traceback, *result;

    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    take_exception(&type, &error, &traceback);
    result = PyObject_CallFunction(known.lost, "sO", what, error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return done(result);
}

/* -- time of children: as `OwnTime`, under the same lock */

static PyObject *
locked(void)
{
    PyObject *lock = PyObject_GetAttr(known.guard, s_lock);
    if (lock != NULL && done(PyObject_CallMethodNoArgs(lock, s_acquire)) < 0) {
        Py_CLEAR(lock);
    }
    return lock;
}

static int
unlocked(PyObject *lock)
{
    int result = called(lock, s_release);
    Py_DECREF(lock);
    return result;
}

static int
child_started(Span *self, PyObject *mono)
{
    PyObject *lock = locked();
    if (lock == NULL) {
        return -1;
    }
    if (self->open_children == 0) {
        set(&self->period_start, mono);
    }
    self->open_children += 1;
    return unlocked(lock);
}

static inline int
has_periods(Span *self)
{
    return self->periods != NULL && PyList_CheckExact(self->periods);
}

/* No child is open any more: note the busy period until now. `period` is a tuple to be filled, `fresh` an empty list. */
static int
count_period(Span *self, PyObject *mono, long long covered, PyObject *period, PyObject *fresh)
{
    PyObject *number = PyLong_FromLongLong(covered), *periods;
    int result;

    self->open_children = 0;
    if (number == NULL || period == NULL || (fresh == NULL && !has_periods(self))) {
        Py_XDECREF(number);
        return PyErr_Occurred() ? -1 : 0; /* without one, a finalizer has ended this span meanwhile */
    }
    PyTuple_SET_ITEM(period, 0, Py_NewRef(self->period_start));
    PyTuple_SET_ITEM(period, 1, Py_NewRef(mono));
    if (!has_periods(self)) {
        set(&self->periods, fresh);
    }
    periods = Py_NewRef(self->periods);
    take(&self->covered_ns, number);
    result = PyList_Append(periods, period);
    if (result == 0 && PyList_GET_SIZE(periods) >= MOST_PERIODS) {
        result = done(PyObject_CallMethodNoArgs((PyObject *)self, s__fold_periods));
    }
    Py_DECREF(periods);
    return result;
}

static int
child_ended(Span *self, PyObject *mono)
{
    long long end, begun, covered;
    PyObject *period = NULL, *fresh = NULL;
    int result = 0;
    PyObject *lock = locked();
    if (lock == NULL) {
        return -1;
    }
    if (self->open_children == 1) {
        /* Made before anything is counted: making them can run finalizers, which start and end children of their own. */
        period = PyTuple_New(2);
        fresh = has_periods(self) ? NULL : PyList_New(0);
    }
    if (self->open_children == 1 && as_number(mono, &end) && as_number(self->period_start, &begun)
        && as_number(self->covered_ns, &covered)) {
        result = count_period(self, mono, covered + end - begun, period, fresh);
    }
    else {
        self->open_children -= 1;
        PyErr_Clear(); /* no memory for what is not needed now */
    }
    Py_XDECREF(period);
    Py_XDECREF(fresh);
    return unlocked(lock) < 0 ? -1 : result;
}

static PyObject *
Span_child_started(Span *self, PyObject *mono)
{
    return child_started(self, mono) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
Span_child_ended(Span *self, PyObject *mono)
{
    return child_ended(self, mono) < 0 ? NULL : Py_NewRef(Py_None);
}

/* -- start */

PyDoc_STRVAR(start_doc,
             "start(type, run, name, kind, parent, parent_id, stage, cycle, before, otel_kind, /)\n--\n\n"
             "Start a span now: as `type(run, name, kind, parent, parent_id=..., ...)`.");

static PyObject *
start(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *parent, *run, *trace, *number;
    long long depth;

    if (nargs != 10 || !PyType_Check(args[0]) || !PyType_IsSubtype((PyTypeObject *)args[0], Span_type)) {
        PyErr_SetString(PyExc_TypeError, "spanfold: start() takes a type of span and nine facts");
        return NULL;
    }
    if (!PyBytes_CheckExact(args[5]) && known.slow_start != NULL) { /* its real parent is not in the journal */
        return PyObject_Vectorcall(known.slow_start, args, (size_t)nargs, NULL);
    }
    run = args[1];
    parent = args[4];
    Span *self = (Span *)new_span((PyTypeObject *)args[0]);
    if (self == NULL) {
        return NULL;
    }
    trace = PyObject_GetAttr(run, s_trace_hex);
    if (trace == NULL) {
        goto failed;
    }
    self->trace = trace;
    self->id = PyObject_CallNoArgs(known.span_id);
    self->attributes = PyDict_New();
    if (self->id == NULL || self->attributes == NULL) {
        goto failed;
    }
    self->run = Py_NewRef(run);
    self->name = Py_NewRef(args[2]);
    self->kind = Py_NewRef(args[3]);
    self->stage = Py_NewRef(args[6]);
    self->cycle = Py_NewRef(args[7]);
    self->before = Py_NewRef(args[8]);
    self->otel_kind = Py_NewRef(args[9]);
    self->scoped = 1;
    self->generation = generation;
    set(&self->parent, parent);
    if (PyBytes_GET_SIZE(args[5])) {
        self->parent_id = Py_NewRef(args[5]);
    }
    else if (IS_SPAN(parent) && ((Span *)parent)->id != NULL) {
        self->parent_id = Py_NewRef(((Span *)parent)->id);
    }
    else {
        self->parent_id = PyObject_GetAttr(parent, s__id);
    }
    if (self->parent_id == NULL) {
        goto failed;
    }
    if (IS_SPAN(parent) && as_number(((Span *)parent)->depth, &depth) && depth) {
        number = PyLong_FromLongLong(depth + 1);
    }
    else {
        PyObject *above = PyObject_GetAttr(parent, s_kind);
        int is_run = above == NULL ? -1 : PyUnicode_Check(above) && PyUnicode_CompareWithASCIIString(above, "run") == 0;
        Py_XDECREF(above);
        PyObject *deep = is_run ? NULL : PyObject_GetAttr(parent, s_depth);
        number = is_run < 0 ? NULL
            : is_run        ? Py_NewRef(zero)
            : as_number(deep, &depth) ? PyLong_FromLongLong(depth + 1)
                                      : NULL;
        Py_XDECREF(deep);
    }
    if (number == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "spanfold: a depth is an int");
        }
        goto failed;
    }
    self->depth = number;
    self->start_ns = PyObject_CallNoArgs(known.time_ns);
    self->mono = self->start_ns == NULL ? NULL : PyObject_CallNoArgs(known.perf);
    if (self->mono == NULL) {
        goto failed;
    }
    if ((IS_SPAN(parent) ? child_started((Span *)parent, self->mono)
                         : done(PyObject_CallMethodOneArg(parent, s__child_started, self->mono)))
        < 0) {
        goto failed;
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

/* -- fields */

PyDoc_STRVAR(set_doc,
             "set($self, /, **fields)\n--\n\n"
             "Set fields of the record; each becomes an attribute `spanfold.<name>`.\n\n"
             "Any value is taken: text, numbers and booleans as they are, everything\n"
             "else as JSON text of its data (docs/formats/values.md), copied now.");

static int
set_field(Span *self, PyObject *name, PyObject *value)
{
    long long number;
    PyObject *key;
    int result;

    if (PyUnicode_CompareWithASCIIString(name, "cycle") == 0) {
        return done(PyObject_CallMethodOneArg((PyObject *)self, s__set_cycle, value));
    }
    key = PyDict_GetItemWithError(known.field_keys, name);
    if (key != NULL) {
        Py_INCREF(key);
    }
    else {
        if (PyErr_Occurred()) {
            return -1;
        }
        key = PyObject_CallOneArg(known.attribute_key, name);
        if (key == NULL) {
            return -1;
        }
    }
    /* `>=` and `<=` leave out NaN and the infinities. */
    PyObject *attributes = Py_XNewRef(self->attributes); /* a key of the host's may compare itself and end the span */
    if (self->told == known.no_told && attributes != NULL && PyDict_CheckExact(attributes)
        && (PyUnicode_CheckExact(value) || as_number(value, &number)
            || (PyFloat_CheckExact(value) && PyFloat_AS_DOUBLE(value) >= -1e300 && PyFloat_AS_DOUBLE(value) <= 1e300))) {
        result = PyDict_SetItem(attributes, key, value);
    }
    else {
        PyObject *all[3] = {(PyObject *)self, key, value};
        result = done(PyObject_VectorcallMethod(s__store, all, 3, NULL));
    }
    Py_XDECREF(attributes);
    Py_DECREF(key);
    return result;
}

static PyObject *
Span_set(Span *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    if (nargs) {
        PyErr_Format(PyExc_TypeError, "set() takes fields by name only, found %zd without a name", nargs);
        return NULL;
    }
    if (self->ended != Py_True && names != NULL) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
            if (set_field(self, PyTuple_GET_ITEM(names, i), args[i]) < 0) {
                return NULL;
            }
        }
    }
    return Py_NewRef(self);
}

/* -- the started event */

/* Divide the attributes into those the started event carries and content, which waits for the span's own record. */
static int
divide(PyObject *attributes, PyObject **told, PyObject **held)
{
    PyObject *keys[CONTENT_KEYS], *key, *value;
    Py_ssize_t position = 0;
    int n = 0, result = 0;

    while (PyDict_Next(attributes, &position, &key, &value)) {
        int is_content = PyUnicode_CheckExact(key) ? PySet_Contains(known.content_keys, key) : 0;
        if (is_content < 0) {
            result = -1;
            break;
        }
        if (is_content && n < CONTENT_KEYS) {
            keys[n++] = Py_NewRef(key);
        }
    }
    *held = result < 0 ? NULL : PyDict_New();
    if (*held == NULL) {
        result = -1;
    }
    else if (n == 0) {
        *told = Py_NewRef(attributes);
    }
    else {
        *told = PyDict_Copy(attributes);
        for (int i = 0; i < n && result == 0; i++) {
            value = *told == NULL ? NULL : PyDict_GetItemWithError(*told, keys[i]);
            if (value == NULL || PyDict_SetItem(*held, keys[i], value) < 0 || PyDict_DelItem(*told, keys[i]) < 0) {
                result = -1;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        Py_DECREF(keys[i]);
    }
    if (result < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "spanfold: attributes changed while they were divided");
        }
        Py_CLEAR(*held);
        Py_CLEAR(*told);
    }
    return result;
}

static PyObject *
places_of(Span *self, PyObject *run)
{
    PyObject *kind = NULL, *name = NULL, *key, *memo, *found = NULL;
    PyObject *parent = Py_XNewRef(self->parent);
    long long depth;

    if (as_number(self->depth, &depth) && depth && parent != NULL && parent != Py_None) {
        kind = IS_SPAN(parent) ? Py_XNewRef(((Span *)parent)->kind) : PyObject_GetAttr(parent, s_kind);
        name = IS_SPAN(parent) ? Py_XNewRef(((Span *)parent)->name) : PyObject_GetAttr(parent, s_name);
    }
    else {
        kind = Py_NewRef(empty_text);
        name = Py_NewRef(empty_text);
    }
    Py_XDECREF(parent);
    key = PyTuple_New(8);
    if (key == NULL) {
        Py_XDECREF(kind);
        Py_XDECREF(name);
        return NULL;
    }
    {
        PyObject *parts[6] = {self->name, self->kind, self->otel_kind, self->stage, self->cycle, self->depth};
        int is_full = kind != NULL && name != NULL;
        for (int i = 0; i < 6; i++) {
            PyTuple_SET_ITEM(key, i, Py_XNewRef(parts[i]));
            is_full = is_full && parts[i] != NULL;
        }
        PyTuple_SET_ITEM(key, 6, kind);
        PyTuple_SET_ITEM(key, 7, name);
        if (!is_full) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_AttributeError, "spanfold: this span lacks a part that it was started with");
            }
            Py_DECREF(key);
            return NULL;
        }
    }
    memo = PyObject_GetAttr(run, s_memo);
    if (memo != NULL) {
        found = PyDict_CheckExact(memo) ? Py_XNewRef(PyDict_GetItemWithError(memo, key)) : NULL;
        if (found == NULL && !PyErr_Occurred()) { /* the first of its kind, for which Python makes it */
            found = PyObject_CallMethodOneArg((PyObject *)self, s__places_of, run);
        }
        Py_DECREF(memo);
    }
    Py_DECREF(key);
    if (found != NULL && (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) != 4)) {
        PyErr_SetString(PyExc_TypeError, "spanfold: expected places");
        Py_CLEAR(found);
    }
    return found;
}

/* Whether an object is a Fragment, or fails as if it were none. */
static int
checked_fragment(PyObject *object)
{
    if (object != NULL && PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 4
        && PyBytes_Check(PyTuple_GET_ITEM(object, 0))) {
        return 1;
    }
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "spanfold: expected a fragment");
    }
    return 0;
}

#define DATA_SIZE(fragment) PyBytes_GET_SIZE(PyTuple_GET_ITEM(fragment, 0))
#define IS_CLEAN(fragment) (PyTuple_GET_ITEM(fragment, 3) == Py_True)

static PyObject *
encoded(PyObject *encoder, PyObject *attributes, PyObject *notes)
{
    PyObject *all[3] = {encoder, attributes, notes};
    PyObject *fragment = PyObject_VectorcallMethod(s_fragment, all, 3, NULL);
    if (!checked_fragment(fragment)) {
        Py_CLEAR(fragment);
    }
    return fragment;
}

static int
announce(Span *self)
{
    PyObject *journal = NULL, *encoder = NULL, *told = NULL, *held = NULL, *body = NULL, *places = NULL;
    PyObject *run, *notes, *before, *attributes;
    int result = -1, is_watched;

    if (!is_whole(self)) {
        return -1;
    }
    run = Py_NewRef(self->run);
    notes = Py_NewRef(self->notes);
    before = Py_NewRef(self->before);
    attributes = Py_NewRef(self->attributes);
    journal = PyObject_GetAttr(run, s_journal);
    encoder = journal == NULL ? NULL : PyObject_GetAttr(journal, s_encoder);
    if (encoder == NULL || !checked_fragment(before)) {
        goto out;
    }
    if (!PyDict_CheckExact(attributes)) {
        PyErr_SetString(PyExc_TypeError, "spanfold: expected a dict of attributes");
        goto out;
    }
    if (PyDict_GET_SIZE(attributes) || notes != Py_None) {
        if (divide(attributes, &told, &held) < 0) {
            goto out;
        }
        if (PyDict_GET_SIZE(told)) {
            PyObject *fragment = encoded(encoder, told, notes);
            if (fragment != NULL && DATA_SIZE(before)) {
                PyObject *all[3] = {encoder, before, fragment};
                PyObject *both = PyObject_VectorcallMethod(s_join, all, 3, NULL);
                Py_SETREF(fragment, both);
                if (!checked_fragment(fragment)) {
                    Py_CLEAR(fragment);
                }
            }
            if (fragment == NULL) {
                goto out;
            }
            Py_SETREF(before, fragment);
            set(&self->before, before);
            set(&self->told, told);
            set(&self->attributes, held);
            set(&self->notes, Py_None);
        }
    }
    places = places_of(self, run);
    if (places == NULL) {
        goto out;
    }
    set(&self->places, places);
    {
        PyObject *all[7] = {encoder, self->trace, self->id, self->start_ns, PyTuple_GET_ITEM(places, 1), self->parent_id, before};
        body = call_holding(s_started, all, 7);
    }
    if (body == NULL) {
        goto out;
    }
    {
        PyObject *is_clean = PyTuple_GET_ITEM(places, 2) == Py_True && IS_CLEAN(before) ? Py_True : Py_False;
        PyObject *all[3] = {journal, body, is_clean};
        if (done(PyObject_VectorcallMethod(s_event, all, 3, NULL)) < 0) {
            goto out;
        }
    }
    is_watched = is_true(run, s_is_watched);
    result = is_watched <= 0 ? is_watched : done(PyObject_CallMethodOneArg(run, s_recorded, s_started));
out:
    Py_XDECREF(journal);
    Py_XDECREF(encoder);
    Py_XDECREF(told);
    Py_XDECREF(held);
    Py_XDECREF(body);
    Py_XDECREF(places);
    Py_DECREF(run);
    Py_DECREF(notes);
    Py_DECREF(before);
    Py_DECREF(attributes);
    return result;
}

PyDoc_STRVAR(announce_doc,
             "announce($self, /)\n--\n\n"
             "Journal that this span was started, so that it is visible if it never ends (P2).\n\n"
             "What is known now is encoded once, for this event and for the span's own\n"
             "record; content waits for the record.");

static PyObject *
Span_announce(Span *self, PyObject *unused)
{
    if (announce(self) < 0 && losing_only("started events") < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* -- being current */

static int
set_current(PyObject *context)
{
#if PY_VERSION_HEX < 0x030C0000
    /* A finalizer that records something must not run in the middle: see `_context.py`. */
    int is_enabled = PyGC_Disable();
    int result = done(PyObject_CallOneArg(known.set_context, context));
    if (is_enabled) {
        PyGC_Enable();
    }
    return result;
#else
    return done(PyObject_CallOneArg(known.set_context, context));
#endif
}

static int
make_current(Span *self)
{
    PyObject *context, *previous, *open_spans, *run, *id;
    int result = -1;

    if (!is_whole(self)) {
        return -1;
    }
    run = Py_NewRef(self->run);
    id = Py_NewRef(self->id);
    previous = PyObject_CallNoArgs(known.get_context);
    if (previous == NULL) {
        goto out;
    }
    context = PyObject_CallOneArg(known.context, previous);
    if (context != NULL) {
        set(&self->previous, previous);
        set(&self->context, context);
        /* A Context is a dict that refuses to be changed by its own methods. */
        if (PyDict_Check(context) && PyDict_SetItem(context, known.span_key, (PyObject *)self) == 0
            && set_current(context) == 0) {
            self->entered = 1;
            open_spans = PyObject_GetAttr(run, s_open_spans);
            if (open_spans != NULL) {
                result = PyObject_SetItem(open_spans, id, (PyObject *)self);
                Py_DECREF(open_spans);
            }
        }
        else if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "spanfold: expected a context that is a dict");
        }
        Py_DECREF(context);
    }
    Py_DECREF(previous);
out:
    Py_DECREF(run);
    Py_DECREF(id);
    return result;
}

PyDoc_STRVAR(make_current_doc, "make_current($self, /)\n--\n\nMake this span the current one of the OpenTelemetry context.");

static PyObject *
Span_make_current(Span *self, PyObject *unused)
{
    return make_current(self) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
Span_enter(Span *self, PyObject *unused)
{
    if (self->scoped && self->ended != Py_True && make_current(self) < 0 && losing_only("the current span") < 0) {
        return NULL;
    }
    return Py_NewRef(self);
}

/* -- the end */

static int
go_back(Span *self)
{
    if (self->previous != Py_None) {
        PyObject *current = PyObject_CallNoArgs(known.get_context);
        if (current == NULL) {
            return -1;
        }
        int is_ours = current == self->context;
        Py_DECREF(current);
        if (is_ours && self->previous != NULL) {
            PyObject *previous = Py_NewRef(self->previous);
            int result = set_current(previous);
            Py_DECREF(previous);
            if (result == 0) {
                self->entered = 0;
                set(&self->previous, Py_None);
                set(&self->context, Py_None);
            }
            return result;
        }
    }
    return done(PyObject_CallMethodNoArgs((PyObject *)self, s_leave));
}

static int
no_longer_open(Span *self, PyObject *run)
{
    PyObject *open_spans = PyObject_GetAttr(run, s_open_spans);
    if (open_spans == NULL) {
        return -1;
    }
    PyObject *id = Py_XNewRef(self->id);
    int result = id != NULL && PyDict_CheckExact(open_spans) ? PyDict_Contains(open_spans, id) : -1;
    if (result > 0) {
        result = PyDict_DelItem(open_spans, id);
        if (result < 0 && PyErr_ExceptionMatches(PyExc_KeyError)) { /* another thread was quicker */
            PyErr_Clear();
            result = 0;
        }
    }
    Py_XDECREF(id);
    Py_DECREF(open_spans);
    if (result < 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "spanfold: expected a dict of open spans");
    }
    return result;
}

static int
finish(Span *self, PyObject *mono, PyObject *end_time)
{
    PyObject *run = NULL, *parent = NULL, *journal = NULL, *encoder = NULL, *places = NULL, *before = NULL, *fragment = NULL;
    PyObject *body = NULL, *end_ns = NULL, *own_ns = NULL, *links = NULL, *message = NULL, *notes = NULL, *attributes = NULL;
    long long start, begun, now, covered, own;
    int result = -1, is_clean, flag;

    if (end_time != Py_None || self->retroactive || self->is_moved || self->generation != generation
        || self->places == Py_None || self->open_children || self->extra != Py_None
        || !as_number(self->start_ns, &start) || !as_number(self->mono, &begun) || !as_number(mono, &now)
        || !as_number(self->covered_ns, &covered)) {
        PyObject *all[3] = {(PyObject *)self, mono, end_time};
        return done(PyObject_VectorcallMethod(s__finish, all, 3, NULL));
    }
    if (self->entered && go_back(self) < 0) {
        return -1;
    }
    run = Py_XNewRef(self->run);
    parent = Py_XNewRef(self->parent);
    if (run == NULL || parent == NULL || no_longer_open(self, run) < 0) {
        goto out;
    }
    if (parent != Py_None
        && (IS_SPAN(parent) ? child_ended((Span *)parent, mono)
                            : done(PyObject_CallMethodOneArg(parent, s__child_ended, mono)))
            < 0) {
        goto out;
    }
    own = now - begun - covered;
    if (own < 0 || self->open_children || self->extra != Py_None) {
        own_ns = PyObject_CallMethodOneArg((PyObject *)self, s__self_ns, mono);
    }
    else {
        own_ns = PyLong_FromLongLong(own);
    }
    end_ns = PyLong_FromLongLong(start + now - begun);
    if (own_ns == NULL || end_ns == NULL) {
        goto out;
    }
    journal = PyObject_GetAttr(run, s_journal);
    encoder = journal == NULL ? NULL : PyObject_GetAttr(journal, s_encoder);
    if (encoder == NULL) {
        goto out;
    }
    places = Py_XNewRef(self->places);
    if (places == NULL || !PyTuple_Check(places) || PyTuple_GET_SIZE(places) != 4) {
        goto out;
    }
    if (parent != Py_None && self->depth != zero) { /* the parent may have got another name meanwhile */
        PyObject *name = IS_SPAN(parent) ? Py_XNewRef(((Span *)parent)->name) : PyObject_GetAttr(parent, s_name);
        PyObject *key = PyTuple_GET_ITEM(places, 0);
        flag = name == NULL || !PyTuple_Check(key) || PyTuple_GET_SIZE(key) != 8
            ? -1
            : name == PyTuple_GET_ITEM(key, 7) ? 1 : PyObject_RichCompareBool(name, PyTuple_GET_ITEM(key, 7), Py_EQ);
        Py_XDECREF(name);
        if (flag < 0) {
            goto out;
        }
        if (!flag) {
            Py_SETREF(places, places_of(self, run));
            if (places == NULL) {
                goto out;
            }
        }
    }
    PyObject *place = PyTuple_GET_ITEM(places, 3);
    before = Py_XNewRef(self->before);
    if (!checked_fragment(before) || !PyTuple_Check(place) || PyTuple_GET_SIZE(place) != 3) {
        goto out;
    }
    is_clean = IS_CLEAN(before) && PyTuple_GET_ITEM(place, 2) == Py_True;
    attributes = Py_XNewRef(self->attributes);
    notes = Py_XNewRef(self->notes);
    if (attributes == NULL || notes == NULL) {
        goto out;
    }
    if (notes != Py_None || !PyDict_CheckExact(attributes) || PyDict_GET_SIZE(attributes)) {
        fragment = encoded(encoder, attributes, notes);
        if (fragment == NULL) {
            goto out;
        }
        is_clean = is_clean && IS_CLEAN(fragment);
    }
    else {
        fragment = Py_NewRef(known.empty_fragment);
    }
    links = Py_XNewRef(self->links);
    message = Py_XNewRef(self->status_message);
    {
        PyObject *all[13] = {
            encoder, place, self->trace, self->id, self->parent_id, self->start_ns, end_ns, own_ns, before, fragment,
            self->status, message, links,
        };
        body = call_holding(s_own_span, all, 13);
    }
    if (body == NULL) {
        goto out;
    }
    if (is_clean && (links != Py_None || !PyUnicode_CheckExact(message) || PyUnicode_GET_LENGTH(message))) {
        PyObject *verdict = PyObject_CallMethodOneArg(encoder, s_passes, body);
        is_clean = verdict == NULL ? -1 : PyObject_IsTrue(verdict);
        Py_XDECREF(verdict);
        if (is_clean < 0) {
            goto out;
        }
    }
    {
        PyObject *all[4] = {journal, body, is_clean ? Py_True : Py_False, self->frame};
        if (done(call_holding(s_span, all, 4)) < 0) {
            goto out;
        }
    }
    self->is_recorded = 1;
    flag = is_true(run, s_is_watched);
    if (flag > 0) {
        PyObject *all[2] = {run, self->kind};
        flag = done(call_holding(s_recorded, all, 2));
    }
    if (flag < 0) {
        goto out;
    }
    flag = is_true(run, s_is_mirrored);
    if (flag > 0) {
        PyObject *all[3] = {(PyObject *)self, end_ns, own_ns};
        flag = done(PyObject_VectorcallMethod(s__show_end, all, 3, NULL));
    }
    result = flag;
out:
    Py_XDECREF(run);
    Py_XDECREF(parent);
    Py_XDECREF(journal);
    Py_XDECREF(encoder);
    Py_XDECREF(places);
    Py_XDECREF(before);
    Py_XDECREF(fragment);
    Py_XDECREF(body);
    Py_XDECREF(end_ns);
    Py_XDECREF(own_ns);
    Py_XDECREF(links);
    Py_XDECREF(message);
    Py_XDECREF(notes);
    Py_XDECREF(attributes);
    if (result < 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "spanfold: a part of this span is missing, or is not what it was");
    }
    return result;
}

/* Nothing of the host is kept: a span object may live on in somebody's hands. */
static int
let_go(Span *self)
{
    PyObject *attributes = PyDict_New();
    if (attributes == NULL) {
        return -1;
    }
    take(&self->attributes, attributes);
    set(&self->parent, Py_None);
    set(&self->before, known.empty_fragment);
    set(&self->told, known.no_told);
    set(&self->links, Py_None);
    set(&self->notes, Py_None);
    set(&self->extra, Py_None);
    set(&self->periods, Py_None);
    set(&self->mirrored, Py_None);
    return 0;
}

/* End the span; as the method, without an exception of ours. */
static int
end(Span *self, PyObject *end_time)
{
    PyObject *mono, *type = NULL, *error = NULL, *traceback = NULL;
    int result;

    if (self->ended == Py_True) {
        return 0;
    }
    set(&self->ended, Py_True);
    mono = PyObject_CallNoArgs(known.perf);
    result = mono == NULL || !is_whole(self) ? -1 : finish(self, mono, end_time);
    if (result < 0) {
        take_exception(&type, &error, &traceback);
        /* Counts what is ours; records the span in spite of what a signal handler raised, which goes on. */
        PyObject *all[4] = {(PyObject *)self, error, mono == NULL ? zero : mono, end_time};
        PyObject *is_ours = PyObject_VectorcallMethod(s__end_failed, all, 4, NULL);
        if (is_ours == Py_True) {
            result = 0;
            Py_CLEAR(type);
            Py_CLEAR(error);
            Py_CLEAR(traceback);
        }
        else if (is_ours == NULL) { /* another one came in the middle of that */
            Py_CLEAR(type);
            Py_CLEAR(error);
            Py_CLEAR(traceback);
            PyErr_Fetch(&type, &error, &traceback);
        }
        Py_XDECREF(is_ours);
    }
    Py_XDECREF(mono);
    if (let_go(self) < 0) {
        if (type == NULL) {
            return -1;
        }
        PyErr_Clear();
    }
    if (result < 0) {
        PyErr_Restore(type, error, traceback);
    }
    return result;
}

PyDoc_STRVAR(end_doc,
             "end($self, /, end_time=None)\n--\n\n"
             "End the span. When this returns its record is in the operating system; later calls do nothing.\n\n"
             "Args:\n"
             "    end_time: Wall clock, nanoseconds; by default start plus the monotonic duration. Never before the start.");

static PyObject *
Span_end(Span *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *end_time = nargs ? args[0] : Py_None;
    Py_ssize_t n = names == NULL ? 0 : PyTuple_GET_SIZE(names);

    if (n == 1 && nargs == 0 && PyUnicode_Compare(PyTuple_GET_ITEM(names, 0), s_end_time) == 0) {
        end_time = args[0];
    }
    else if (n || nargs > 1) {
        PyErr_SetString(PyExc_TypeError, "end() takes one argument, end_time");
        return NULL;
    }
    return end(self, end_time) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
Span_exit(Span *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs > 1 && args[1] != Py_None) {
        if (done(PyObject_CallMethodOneArg((PyObject *)self, s_ended_by, args[1])) < 0) {
            return NULL;
        }
    }
    else if (end(self, Py_None) < 0) {
        return NULL;
    }
    /* It was ended in another thread or task. */
    if (self->entered && done(PyObject_CallMethodNoArgs((PyObject *)self, s_leave)) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef Span_methods[] = {
    {"set", METHOD(Span_set), METH_FASTCALL | METH_KEYWORDS, set_doc},
    {"announce", METHOD(Span_announce), METH_NOARGS, announce_doc},
    {"make_current", METHOD(Span_make_current), METH_NOARGS, make_current_doc},
    {"end", METHOD(Span_end), METH_FASTCALL | METH_KEYWORDS, end_doc},
    {"__enter__", METHOD(Span_enter), METH_NOARGS, "__enter__($self, /)\n--\n\n"},
    {"__exit__", METHOD(Span_exit), METH_FASTCALL, "__exit__($self, kind, error, traceback, /)\n--\n\n"},
    {"_child_started", METHOD(Span_child_started), METH_O, "_child_started($self, mono, /)\n--\n\n"},
    {"_child_ended", METHOD(Span_child_ended), METH_O, "_child_ended($self, mono, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot Span_slots[] = {
    {Py_tp_doc, "The state and the hot methods of a span; `spanfold.instrument._span` has the others."},
    {Py_tp_new, Span_new},
    {Py_tp_traverse, Span_traverse},
    {Py_tp_clear, Span_clear},
    {Py_tp_dealloc, Span_dealloc},
    {Py_tp_methods, Span_methods},
    {Py_tp_members, Span_members},
    {0, NULL},
};

static PyType_Spec Span_spec = {
    .name = "spanfold.instrument._native.Span",
    .basicsize = sizeof(Span),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = Span_slots,
};

/* -- the module */

PyDoc_STRVAR(setup_doc, "setup(**parts): hand over what belongs to Python; once, before anything else.");

static PyObject *
setup(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *names[] = {
        "no_told", "empty_fragment", "span_key", "context", "get_context", "set_context", "span_id", "time_ns", "perf", "lost",
        "guard", "field_keys", "attribute_key", "content_keys", "slow_start", NULL,
    };
    Known k = {0};
    if (!is_main(MODULE)) {
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "$OO!OOOOOOOOOO!OO!O", names, &k.no_told, &PyTuple_Type, &k.empty_fragment, &k.span_key, &k.context,
            &k.get_context, &k.set_context, &k.span_id, &k.time_ns, &k.perf, &k.lost, &k.guard, &PyDict_Type, &k.field_keys,
            &k.attribute_key, &PyFrozenSet_Type, &k.content_keys, &k.slow_start)) {
        return NULL;
    }
    /* Kept until the process ends, as the module is. */
    PyObject *kept[] = {
        k.no_told, k.empty_fragment, k.span_key, k.context, k.get_context, k.set_context, k.span_id, k.time_ns, k.perf,
        k.lost, k.guard, k.field_keys, k.attribute_key, k.content_keys, k.slow_start,
    };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        Py_INCREF(kept[i]);
    }
    known = k;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(forked_doc, "forked(): this process is a fork; spans of before belong to its parent.");

static PyObject *
forked(PyObject *module, PyObject *unused)
{
    generation += 1;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"setup", METHOD(setup), METH_VARARGS | METH_KEYWORDS, setup_doc},
    {"start", METHOD(start), METH_FASTCALL, start_doc},
    {"forked", METHOD(forked), METH_NOARGS, forked_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "spanfold.instrument._native",
    .m_doc = "The life of a span in C.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    if (!is_main(MODULE)) {
        return NULL;
    }
#define INTERN(name) \
    if ((s_##name = PyUnicode_InternFromString(#name)) == NULL) { \
        return NULL; \
    }
    NAMES(INTERN)
    zero = PyLong_FromLong(0);
    empty_text = PyUnicode_InternFromString("");
    if (zero == NULL || empty_text == NULL) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    Span_type = (PyTypeObject *)PyType_FromSpec(&Span_spec);
    if (module == NULL || Span_type == NULL || PyModule_AddObjectRef(module, "Span", (PyObject *)Span_type) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
