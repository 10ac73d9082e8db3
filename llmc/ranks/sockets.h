// TCP between the processes of a run: addresses, listening, connecting, and whole messages with a time limit. Nothing
// here waits for ever unless it is told to, no call raises SIGPIPE, and no socket is passed on to a program started.
#ifndef LLMC_SOCKETS_H
#define LLMC_SOCKETS_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "llmc/base/utils.h"

#define SOCKET_FOREVER 1e300 // a deadline (seconds_now) that never comes
#define SOCKET_HOST_BYTES 256

#if defined(MSG_NOSIGNAL)
#define SOCKET_SEND_FLAGS MSG_NOSIGNAL
#else
#define SOCKET_SEND_FLAGS 0 // macOS: SO_NOSIGPIPE, which socket_prepare sets
#endif

// How sending or receiving ended.
typedef enum {
    SOCKET_DONE,
    SOCKET_CLOSED,  // the other end has closed the connection, or its process is gone
    SOCKET_TIMEOUT, // the deadline has come first
    SOCKET_ERROR    // errno says what
} SocketStatus;

static inline void socket_close(int *fd) {
    if (*fd >= 0) { close(*fd); }
    *fd = -1;
}

// Milliseconds for poll() until a deadline: at least 0, at most `most`.
static inline int socket_milliseconds(double deadline, int most) {
    double left = deadline - seconds_now();
    if (left <= 0.0) { return 0; }
    return left * 1e3 >= (double)most ? most : (int)(left * 1e3) + 1;
}

// ---- Addresses ----

typedef struct {
    char host[SOCKET_HOST_BYTES]; // a name or a number, without brackets
    int port;
} SocketAddress;

// Writes "host:port", or "[number]:port" for IPv6, into text.
static inline const char *socket_address_text(const SocketAddress *address, char *text, size_t size) {
    bool colons = strchr(address->host, ':') != NULL;
    snprintf(text, size, colons ? "[%s]:%d" : "%s:%d", address->host, address->port);
    return text;
}

static inline bool socket_parse_port(const char *digits, int *port) {
    long value = 0;
    size_t n = strlen(digits);
    if (n == 0 || n > 5) { return false; }
    for (size_t i = 0; i < n; i++) {
        if (digits[i] < '0' || digits[i] > '9') { return false; }
        value = 10 * value + (digits[i] - '0');
    }
    *port = (int)value;
    return value >= 1 && value <= 65535;
}

// Takes "host", "host:port", "[IPv6]:port", "[IPv6]" or a bare IPv6 number apart. `what` begins the message.
static inline bool socket_parse_address(SocketAddress *address, const char *text, int default_port, const char *what,
                                        Error *error) {
    const char *first = strchr(text, ':'), *last = strrchr(text, ':'), *host = text, *rest = NULL;
    size_t n = strlen(text);
    address->port = default_port;
    if (text[0] == '[') {
        const char *bracket = strchr(text, ']');
        if (bracket == NULL) { return fail(error, "%s %.200s: a ] is missing after the IPv6 number", what, text); }
        host = text + 1, n = (size_t)(bracket - host), rest = bracket + 1;
    } else if (first != NULL && first == last) {
        n = (size_t)(first - text), rest = first;
    }
    if (n == 0 || n >= sizeof(address->host)) {
        return fail(error, "%s %.200s: expected ADDRESS or ADDRESS:PORT, the address of the machine of rank 0", what,
                    text);
    }
    memcpy(address->host, host, n);
    address->host[n] = '\0';
    if (rest == NULL || rest[0] == '\0') { return true; }
    if (rest[0] == ':' && socket_parse_port(rest + 1, &address->port)) { return true; }
    return fail(error, "%s %.200s: %.20s is no port, expected : and a number from 1 to 65535", what, text, rest);
}

// Looks up an address; *list is to be freed with freeaddrinfo. Returns getaddrinfo's status, 0 for success.
static inline int socket_resolve(const SocketAddress *address, bool numeric, struct addrinfo **list) {
    struct addrinfo hints;
    char port[16];
    memset(&hints, 0, sizeof(hints));
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0);
    snprintf(port, sizeof(port), "%d", address->port);
    *list = NULL;
    return getaddrinfo(address->host, port, &hints, list);
}

static inline bool socket_address_is_number(const SocketAddress *address) {
    struct addrinfo *list;
    bool number = socket_resolve(address, true, &list) == 0;
    if (number) { freeaddrinfo(list); }
    return number;
}

// Can another machine of the network reach this interface's address?
static inline bool socket_usable_interface(const struct ifaddrs *interface) {
    if (interface->ifa_addr == NULL || !(interface->ifa_flags & IFF_UP)) { return false; }
    if (interface->ifa_flags & IFF_LOOPBACK) { return false; }
    if (interface->ifa_addr->sa_family == AF_INET) { return true; }
    if (interface->ifa_addr->sa_family != AF_INET6) { return false; }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)interface->ifa_addr;
    return !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr); // those mean nothing without the name of the interface
}

// Writes the numeric addresses of this machine, separated by spaces, into text; what does not fit is left out.
static inline void socket_own_addresses(char *text, size_t size) {
    struct ifaddrs *list = NULL;
    size_t used = 0;
    text[0] = '\0';
    if (getifaddrs(&list) != 0) { return; }
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        char number[128];
        if (!socket_usable_interface(i)) { continue; }
        socklen_t bytes = i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        if (getnameinfo(i->ifa_addr, bytes, number, sizeof(number), NULL, 0, NI_NUMERICHOST) != 0) { continue; }
        size_t n = strlen(number);
        if (used + n + 2 > size) { break; }
        if (used > 0) { text[used++] = ' '; }
        memcpy(text + used, number, n + 1);
        used += n;
    }
    freeifaddrs(list);
}

// ---- Sockets ----

// Not inherited by programs, never waits by itself, small messages go out at once, and a machine that vanished is
// noticed in the end.
static inline void socket_prepare(int fd) {
    int on = 1, flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (flags >= 0) { fcntl(fd, F_SETFL, flags | O_NONBLOCK); }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
#if defined(SO_NOSIGPIPE)
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
#endif
#if defined(TCP_KEEPIDLE) && defined(TCP_KEEPINTVL) && defined(TCP_KEEPCNT)
    int idle = 30, interval = 10, count = 6; // seconds, seconds, unanswered questions
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
#endif
}

static inline int socket_create(int family) {
#if defined(SOCK_CLOEXEC)
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
#else
    int fd = socket(family, SOCK_STREAM, 0);
#endif
    if (fd >= 0) { socket_prepare(fd); }
    return fd;
}

static inline int socket_accept(int listener) {
    int fd;
    do {
#if defined(__linux__) && defined(_GNU_SOURCE)
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
#else
        fd = accept(listener, NULL, NULL);
#endif
    } while (fd < 0 && errno == EINTR);
    if (fd >= 0) { socket_prepare(fd); }
    return fd;
}

// Listens at an address; -1 and errno on failure. The port is free again as soon as the process is gone (SO_REUSEADDR).
static inline int socket_listen_at(const struct sockaddr *address, socklen_t bytes) {
    int fd = socket_create(address->sa_family), on = 1, off = 0;
    if (fd < 0) { return -1; }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address->sa_family == AF_INET6) { setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)); }
    if (bind(fd, address, bytes) == 0 && listen(fd, SOMAXCONN) == 0) { return fd; }
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

// Listens at all of this machine's addresses, IPv6 and IPv4; port 0: any free one. -1 and errno on failure.
static inline int socket_listen_everywhere(int port) {
    struct sockaddr_in6 any6;
    memset(&any6, 0, sizeof(any6));
    any6.sin6_family = AF_INET6;
    any6.sin6_addr = in6addr_any;
    any6.sin6_port = htons((uint16_t)port);
    int fd = socket_listen_at((const struct sockaddr *)&any6, sizeof(any6));
    if (fd >= 0 || errno == EADDRINUSE || errno == EACCES) { return fd; }
    struct sockaddr_in any4; // a machine without IPv6
    memset(&any4, 0, sizeof(any4));
    any4.sin_family = AF_INET;
    any4.sin_addr.s_addr = htonl(INADDR_ANY);
    any4.sin_port = htons((uint16_t)port);
    return socket_listen_at((const struct sockaddr *)&any4, sizeof(any4));
}

// The port that a listening socket has; 0 on failure.
static inline int socket_port(int fd) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof(address);
    memset(&address, 0, sizeof(address));
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) { return 0; }
    if (address.ss_family == AF_INET6) { return ntohs(((struct sockaddr_in6 *)(void *)&address)->sin6_port); }
    return ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
}

// Waits until fd is ready (POLLIN or POLLOUT); false when the deadline comes first.
static inline bool socket_wait(int fd, short events, double deadline) {
    for (;;) {
        struct pollfd p = {fd, events, 0};
        int n = poll(&p, 1, socket_milliseconds(deadline, 60000));
        if (n > 0) { return true; }
        if (n == 0 && seconds_now() >= deadline) { return false; }
        if (n < 0 && errno != EINTR && errno != EAGAIN) { return true; } // the next call on fd says why
    }
}

// On one machine, a connection to a free port can be answered by itself: both ends are then the same socket.
static inline bool socket_is_self_connected(int fd) {
    struct sockaddr_storage here, there;
    socklen_t a = sizeof(here), b = sizeof(there);
    memset(&here, 0, sizeof(here));
    memset(&there, 0, sizeof(there));
    if (getsockname(fd, (struct sockaddr *)&here, &a) != 0) { return false; }
    if (getpeername(fd, (struct sockaddr *)&there, &b) != 0) { return false; }
    return a == b && memcmp(&here, &there, (size_t)a) == 0;
}

// Connects to one address; -1 and errno (ETIMEDOUT at the deadline) on failure.
static inline int socket_connect_to(const struct sockaddr *address, socklen_t bytes, double deadline) {
    int fd = socket_create(address->sa_family);
    if (fd < 0) { return -1; }
    int code = connect(fd, address, bytes) == 0 ? 0 : errno;
    if (code == EINPROGRESS || code == EINTR) {
        socklen_t size = sizeof(code);
        code = ETIMEDOUT;
        if (socket_wait(fd, POLLOUT, deadline) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) != 0) {
            code = errno;
        }
    }
    if (code == 0 && socket_is_self_connected(fd)) { code = ECONNREFUSED; }
    if (code == 0) { return fd; }
    close(fd);
    errno = code;
    return -1;
}

// Connects to the first that answers of all that an address resolves to, with `seconds` for each. -1 and errno, or
// *lookup (getaddrinfo's status, else 0), on failure.
static inline int socket_connect(const SocketAddress *address, double seconds, double deadline, int *lookup) {
    struct addrinfo *list;
    *lookup = socket_resolve(address, false, &list);
    if (*lookup != 0) { return -1; }
    int fd = -1, code = ETIMEDOUT;
    for (const struct addrinfo *i = list; i != NULL && fd < 0; i = i->ai_next) {
        double until = seconds_now() + seconds;
        fd = socket_connect_to(i->ai_addr, i->ai_addrlen, until < deadline ? until : deadline);
        if (fd < 0) { code = errno; }
    }
    freeaddrinfo(list);
    errno = code;
    return fd;
}

// ---- Whole messages ----

static inline bool socket_would_wait(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// What errno says about the other end after a failed send or recv.
static inline SocketStatus socket_failed(void) {
    return errno == ECONNRESET || errno == EPIPE ? SOCKET_CLOSED : SOCKET_ERROR;
}

// Sends all bytes.
static inline SocketStatus socket_send(int fd, const void *data, size_t bytes, double deadline) {
    const uint8_t *at = (const uint8_t *)data;
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, SOCKET_SEND_FLAGS);
        if (n > 0) {
            at += n, bytes -= (size_t)n;
        } else if (n < 0 && !socket_would_wait()) {
            return socket_failed();
        } else if (!socket_wait(fd, POLLOUT, deadline)) {
            return SOCKET_TIMEOUT;
        }
    }
    return SOCKET_DONE;
}

// Receives exactly so many bytes.
static inline SocketStatus socket_receive(int fd, void *data, size_t bytes, double deadline) {
    uint8_t *at = (uint8_t *)data;
    while (bytes > 0) {
        ssize_t n = recv(fd, at, bytes, 0);
        if (n > 0) {
            at += n, bytes -= (size_t)n;
        } else if (n == 0) {
            return SOCKET_CLOSED;
        } else if (!socket_would_wait()) {
            return socket_failed();
        } else if (!socket_wait(fd, POLLIN, deadline)) {
            return SOCKET_TIMEOUT;
        }
    }
    return SOCKET_DONE;
}

// Throws away what has arrived; true when the other end has closed.
static inline bool socket_drain(int fd) {
    char waste[4096];
    for (int i = 0; i < 256; i++) { // an end that never stops sending must not hold us here
        ssize_t n = recv(fd, waste, sizeof(waste), 0);
        if (n == 0) { return true; }
        if (n < 0) { return !socket_would_wait(); }
    }
    return false;
}

// Ends a connection so that what was sent last arrives: close() with unread bytes in the queue would send a reset,
// which may overtake it. Waits until the deadline for the other end to close too.
static inline void socket_close_gently(int *fd, double deadline) {
    if (*fd < 0) { return; }
    shutdown(*fd, SHUT_WR);
    while (!socket_drain(*fd) && seconds_now() < deadline && socket_wait(*fd, POLLIN, deadline)) {}
    socket_close(fd);
}

// Makes room for `count` open files, as far as the system lets us; false: it does not.
static inline bool socket_allow_open_files(int64_t count) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) { return true; }
    if (limit.rlim_cur == RLIM_INFINITY || (int64_t)limit.rlim_cur >= count) { return true; }
    if (limit.rlim_max != RLIM_INFINITY && (int64_t)limit.rlim_max < count) { return false; }
    limit.rlim_cur = (rlim_t)count;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

#endif // LLMC_SOCKETS_H
