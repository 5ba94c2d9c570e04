/* What both halves of the C core are built from. */

#ifndef SPANFOLD_NATIVE_H
#define SPANFOLD_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define METHOD(function) (PyCFunction)(void (*)(void))function

/* A 64-bit int of Python's own type; never raises. */
static inline int
as_number(PyObject *object, long long *number)
{
    int overflow;
    if (object == NULL || !PyLong_CheckExact(object)) {
        return 0;
    }
    *number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

/* Whether this interpreter may use a module: what is known is that of one, for all. Sets an exception. */
static inline int
is_main(const char *module)
{
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
        return 1;
    }
    PyErr_Format(PyExc_ImportError, "%s: only for the main interpreter; others do it in Python.", module);
    return 0;
}

/* Whether `setup` handed over what belongs to Python. Sets an exception. */
static inline int
is_set_up(const void *handed_over, const char *module)
{
    if (handed_over != NULL) {
        return 1;
    }
    PyErr_Format(PyExc_RuntimeError, "%s: `setup` comes first.", module);
    return 0;
}

/* Call a method and forget what it returns; an exception that is there already stays the one that is told. */
static inline int
called(PyObject *object, PyObject *name)
{
    PyObject *type, *error, *traceback, *result;
    PyErr_Fetch(&type, &error, &traceback);
    result = PyObject_CallMethodNoArgs(object, name);
    Py_XDECREF(result);
    if (type != NULL) {
        PyErr_Restore(type, error, traceback);
    }
    return result == NULL ? -1 : 0;
}

/* Take the exception that is set; the caller owns the three. */
static inline void
take_exception(PyObject **type, PyObject **error, PyObject **traceback)
{
    PyErr_Fetch(type, error, traceback);
    PyErr_NormalizeException(type, error, traceback);
    if (*traceback != NULL) {
        PyException_SetTraceback(*error, *traceback);
    }
}

/* -- types whose state lies in members: those that are objects come first, and stand one behind the other */

static inline PyObject **
member_of(PyObject *self, const PyMemberDef *member)
{
    return (PyObject **)((char *)self + member->offset);
}

static inline int
visit_members(PyObject *self, const PyMemberDef *members, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (; members->type == T_OBJECT_EX; members++) {
        Py_VISIT(*member_of(self, members));
    }
    return 0;
}

static inline int
clear_members(PyObject *self, const PyMemberDef *members)
{
    for (; members->type == T_OBJECT_EX; members++) {
        Py_CLEAR(*member_of(self, members));
    }
    return 0;
}

static inline void
end_object(PyObject *self, const PyMemberDef *members)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_members(self, members);
    type->tp_free(self);
    Py_DECREF(type);
}

#endif
