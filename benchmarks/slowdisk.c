/* A slower disk, for every program that is started with this in LD_PRELOAD: each sync lasts at least EVENTLOG_BENCH_SYNC_US microseconds.
 *
 * A sync is what benchmarks/syncs.py counts as one, as far as any side of the benchmarks uses it: fdatasync, fsync, msync(MS_SYNC), and
 * pwrite through a descriptor that was opened with O_DSYNC (lmdb writes its meta page so).
 * The real call comes first; then the thread sleeps, without burning CPU, until as much time has passed. A call that fails returns at once.
 *
 * Half of a sync is the wait until the data is written, half that until the disk's cache is flushed (measured on a disk: 19 of 36 us).
 * Whoever lets the kernel begin before he syncs (posix_fadvise, sync_file_range) has had as much of the first half as has passed since.
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

static struct timespec later(struct timespec time, long us)
{
    time.tv_nsec += us * 1000;
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

static int before(struct timespec one, struct timespec other)
{
    return one.tv_sec < other.tv_sec || (one.tv_sec == other.tv_sec && one.tv_nsec < other.tv_nsec);
}

/* What this thread has let the kernel begin to write, and when; what it syncs next through that descriptor. */
static __thread int writing_fd = -1;
static __thread struct timespec writing_since;

static void sleep_out(int fd, struct timespec begun)
{
    struct timespec until = later(begun, sync_us);
    if (fd >= 0 && fd == writing_fd) {
        struct timespec written = later(writing_since, sync_us), flushed = later(begun, sync_us / 2);
        until = before(written, flushed) ? flushed : written;
        writing_fd = -1;
    }
    if (before(until, now()))
        return;
    /* By default the kernel may wake a thread 50 us late, to save wake-ups: half of such a sync again. Only this sleep is made exact: 0 gives
     * the thread's default back, so that nobody polls or waits for a lock in another way than without this. */
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    prctl(PR_SET_TIMERSLACK, 0UL);
}

/* `real` is the next definition of that name behind this one, the C library's; two threads that look it up at once find the same. */
#define STRETCHED(type, name, parameters, arguments, fd, is_sync)   \
    type name parameters                                            \
    {                                                               \
        static type(*real) parameters;                              \
        struct timespec begun = now();                              \
        if (!real)                                                  \
            real = (type(*) parameters)dlsym(RTLD_NEXT, #name);     \
        type done = real arguments;                                 \
        if (done >= 0 && (is_sync))                                 \
            sleep_out(fd, begun);                                   \
        return done;                                                \
    }

STRETCHED(int, fdatasync, (int fd), (fd), fd, 1)
STRETCHED(int, fsync, (int fd), (fd), fd, 1)
STRETCHED(int, msync, (void *at, size_t length, int flags), (at, length, flags), -1, flags & MS_SYNC)
/* Asking for the flags at each pwrite costs every side 0.1 us. The flag of O_SYNC includes that of O_DSYNC. */
STRETCHED(ssize_t, pwrite, (int fd, const void *bytes, size_t length, off_t at), (fd, bytes, length, at), -1, fcntl(fd, F_GETFL) & O_DSYNC)
STRETCHED(ssize_t, pwrite64, (int fd, const void *bytes, size_t length, off64_t at), (fd, bytes, length, at), -1, fcntl(fd, F_GETFL) & O_DSYNC)

#define BEGINS(name, parameters, arguments, fd, does)           \
    int name parameters                                         \
    {                                                           \
        static int(*real) parameters;                           \
        struct timespec begun = now();                          \
        if (!real)                                              \
            real = (int(*) parameters)dlsym(RTLD_NEXT, #name);  \
        int failed = real arguments;                            \
        if (!failed && (does)) {                                \
            writing_fd = fd;                                    \
            writing_since = begun;                              \
        }                                                       \
        return failed;                                          \
    }

BEGINS(posix_fadvise, (int fd, off_t at, off_t length, int advice), (fd, at, length, advice), fd, advice == POSIX_FADV_DONTNEED)
BEGINS(posix_fadvise64, (int fd, off64_t at, off64_t length, int advice), (fd, at, length, advice), fd, advice == POSIX_FADV_DONTNEED)
BEGINS(sync_file_range, (int fd, off64_t at, off64_t length, unsigned flags), (fd, at, length, flags), fd, flags & SYNC_FILE_RANGE_WRITE)
