// A clock that runs RATE times as fast, for programs that load this library (LD_PRELOAD). See quick_clock.py.
//
// Each look at a monotonic clock shows QUICK_CLOCK_RATE times the time since QUICK_CLOCK_SINCE, and each wait for a
// time ends as much earlier. So a program finds itself on a machine that is RATE times as slow, and no time limit of
// it knows the difference. The time of day stays as it is: files and other machines have it too.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(result, name, ...)                     \
  static result (*real)(__VA_ARGS__);               \
  if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static double rate = 1, since = 0;

__attribute__((constructor)) static void read_variables(void) {
  const char *given = getenv("QUICK_CLOCK_RATE"), *begin = getenv("QUICK_CLOCK_SINCE");
  if (given && begin) rate = atof(given), since = atof(begin);
}

static int is_quick(clockid_t clock) {
  return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_MONOTONIC_COARSE;
}

static double seconds_of(const struct timespec *time) { return time->tv_sec + time->tv_nsec / 1e9; }

static struct timespec time_of(double seconds) {
  struct timespec time;
  if (seconds < 0) seconds = 0;
  time.tv_sec = (time_t)seconds;
  time.tv_nsec = (long)((seconds - time.tv_sec) * 1e9);
  return time;
}

// The moment that the quick clock shows as `time`.
static struct timespec moment_of(const struct timespec *time) {
  return time_of(since + (seconds_of(time) - since) / rate);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int code = syscall(SYS_clock_gettime, clock, now);
  if (code == 0 && is_quick(clock)) *now = time_of(since + (seconds_of(now) - since) * rate);
  return code;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *rest) {
  struct timespec wait = time_of(seconds_of(time) / rate);
  if (flags & TIMER_ABSTIME) wait = is_quick(clock) ? moment_of(time) : *time;
  return syscall(SYS_clock_nanosleep, clock, flags, &wait, rest) == 0 ? 0 : errno;
}

int nanosleep(const struct timespec *time, struct timespec *rest) {
  struct timespec wait = time_of(seconds_of(time) / rate);
  return syscall(SYS_nanosleep, &wait, rest);
}

int select(int count, fd_set *reads, fd_set *writes, fd_set *errors, struct timeval *limit) {
  REAL(int, "select", int, fd_set *, fd_set *, fd_set *, struct timeval *);
  struct timeval shorter;
  if (limit) {
    struct timespec wait = time_of((limit->tv_sec + limit->tv_usec / 1e6) / rate);
    shorter.tv_sec = wait.tv_sec, shorter.tv_usec = wait.tv_nsec / 1000;
  }
  return real(count, reads, writes, errors, limit ? &shorter : NULL);
}

int poll(struct pollfd *files, nfds_t count, int milliseconds) {
  REAL(int, "poll", struct pollfd *, nfds_t, int);
  return real(files, count, milliseconds > 0 ? (int)ceil(milliseconds / rate) : milliseconds);
}

int epoll_wait(int file, struct epoll_event *events, int count, int milliseconds) {
  REAL(int, "epoll_wait", int, struct epoll_event *, int, int);
  return real(file, events, count, milliseconds > 0 ? (int)ceil(milliseconds / rate) : milliseconds);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until) {
  REAL(int, "sem_clockwait", sem_t *, clockid_t, const struct timespec *);
  struct timespec moment = is_quick(clock) ? moment_of(until) : *until;
  return real(semaphore, clock, &moment);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
  REAL(int, "pthread_cond_clockwait", pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
  struct timespec moment = is_quick(clock) ? moment_of(until) : *until;
  return real(condition, mutex, clock, &moment);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  // The condition knows its clock. A monotonic one counts from the start of the machine, the other from 1970.
  struct timespec moment = until->tv_sec < 1000000000 ? moment_of(until) : *until;
  return real(condition, mutex, &moment);
}

int sigtimedwait(const sigset_t *signals, siginfo_t *found, const struct timespec *limit) {
  REAL(int, "sigtimedwait", const sigset_t *, siginfo_t *, const struct timespec *);
  struct timespec wait;
  if (limit) wait = time_of(seconds_of(limit) / rate);
  return real(signals, found, limit ? &wait : NULL);
}
