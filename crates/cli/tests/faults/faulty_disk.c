/* Loaded into a server with LD_PRELOAD: faults of its disk and of its wall clock.
 *
 * While the file of FAULTY_DISK exists, its first letter is the fault of the disk:
 *   h  syncs hang
 *   s  each sync takes 100 ms longer
 *   f  syncs and writes fail with an I/O error
 *   n  writes fail because no space is left
 * While the file of WRONG_CLOCK exists, the wall clock differs by as many seconds as it says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The content of the file that a variable names; empty without one. */
static void content(const char *variable, char *text, size_t size) {
    text[0] = 0;
    const char *file = getenv(variable);
    int fd = file == NULL ? -1 : open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t length = read(fd, text, size - 1);
    text[length < 0 ? 0 : length] = 0;
    close(fd);
}

static char disk_fault(void) {
    char text[16];
    content("FAULTY_DISK", text, sizeof text);
    return text[0];
}

static int faulty_sync(const char *name, int fd) {
    char fault = disk_fault();
    if (fault == 's') {
        usleep(100 * 1000);
    }
    while (fault == 'h') {
        usleep(10 * 1000);
        fault = disk_fault();
    }
    if (fault == 'f') {
        errno = EIO;
        return -1;
    }
    int (*sync_file)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return sync_file == NULL ? -1 : sync_file(fd);
}

static ssize_t faulty_write(int fd, const void *bytes, size_t count, off_t offset) {
    char fault = disk_fault();
    if (fault == 'f' || fault == 'n') {
        errno = fault == 'f' ? EIO : ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, bytes, count, offset);
}

int fsync(int fd) { return faulty_sync("fsync", fd); }

int fdatasync(int fd) { return faulty_sync("fdatasync", fd); }

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    return faulty_write(fd, bytes, count, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    return faulty_write(fd, bytes, count, offset);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int (*read_clock)(clockid_t, struct timespec *) =
        (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = read_clock == NULL ? -1 : read_clock(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) {
        char text[16];
        content("WRONG_CLOCK", text, sizeof text);
        time->tv_sec += atol(text);
    }
    return result;
}
