/* A slower disk, for every program that is started with this in LD_PRELOAD: each sync lasts at least EVENTLOG_BENCH_SYNC_US microseconds.
 *
 * A sync is what benchmarks/syncs.py counts as one, as far as any side of the benchmarks uses it: fdatasync, fsync, msync(MS_SYNC), and
 * pwrite through a descriptor that was opened with O_DSYNC (lmdb writes its meta page so).
 * The real call comes first; then the thread sleeps, without burning CPU, until as much time has passed. A call that fails returns at once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static long sync_us;

/* Asked by benchmarks/slowdisk.py: is this loaded, and with which time? */
long eventlog_bench_sync_us(void) { return sync_us; }

__attribute__((constructor)) static void configure(void)
{
    const char *text = getenv("EVENTLOG_BENCH_SYNC_US");
    sync_us = text ? strtol(text, NULL, 10) : 0;
}

static struct timespec now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time;
}

static void sleep_out(struct timespec begun)
{
    struct timespec until = begun, at = now();
    until.tv_nsec += sync_us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (at.tv_sec > until.tv_sec || (at.tv_sec == until.tv_sec && at.tv_nsec >= until.tv_nsec))
        return;
    /* By default the kernel may wake a thread 50 us late, to save wake-ups: half of such a sync again. Only this sleep is made exact: 0 gives
     * the thread's default back, so that nobody polls or waits for a lock in another way than without this. */
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    prctl(PR_SET_TIMERSLACK, 0UL);
}

/* `real` is the next definition of that name behind this one, the C library's; two threads that look it up at once find the same. */
#define STRETCHED(type, name, parameters, arguments, is_sync)       \
    type name parameters                                            \
    {                                                               \
        static type(*real) parameters;                              \
        struct timespec begun = now();                              \
        if (!real)                                                  \
            real = (type(*) parameters)dlsym(RTLD_NEXT, #name);     \
        type done = real arguments;                                 \
        if (done >= 0 && (is_sync))                                 \
            sleep_out(begun);                                       \
        return done;                                                \
    }

STRETCHED(int, fdatasync, (int fd), (fd), 1)
STRETCHED(int, fsync, (int fd), (fd), 1)
STRETCHED(int, msync, (void *at, size_t length, int flags), (at, length, flags), flags & MS_SYNC)
/* Asking for the flags at each pwrite costs every side 0.1 us. The flag of O_SYNC includes that of O_DSYNC. */
STRETCHED(ssize_t, pwrite, (int fd, const void *bytes, size_t length, off_t at), (fd, bytes, length, at), fcntl(fd, F_GETFL) & O_DSYNC)
STRETCHED(ssize_t, pwrite64, (int fd, const void *bytes, size_t length, off64_t at), (fd, bytes, length, at), fcntl(fd, F_GETFL) & O_DSYNC)
