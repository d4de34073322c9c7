// The handle of a program or library as gcc's crtbegin.o defines it: a variable that holds its own
// address. Without it lld takes the first byte of the file, and pthread_atfork() reads that; but
// auditwheel moves the beginning of a file elsewhere, so nothing may be left there.
extern void* __dso_handle __attribute__((visibility("hidden")));
void* __dso_handle = &__dso_handle;
