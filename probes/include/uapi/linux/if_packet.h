/* Stub: nothing of it is needed. */
