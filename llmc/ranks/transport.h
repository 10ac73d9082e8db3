// The transport between the processes of a run: addresses, TCP sockets, and links, which carry whole frames. No
// function waits for ever, no call raises SIGPIPE, and no program that a process starts inherits a socket.
#ifndef LLMC_TRANSPORT_H
#define LLMC_TRANSPORT_H

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

#define SOCKET_HOST_BYTES 256
#define FRAME_MAGIC 0x326d6f63u
#define FRAME_NAME_BYTES 32               // the name of an exchange and a NUL
#define LINK_MAX_BYTES ((int64_t)1 << 28) // of a frame's data

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 // macOS: socket_prepare sets SO_NOSIGPIPE
#endif

// ---- Addresses ----

typedef struct {
    char host[SOCKET_HOST_BYTES]; // a name or a number, without brackets
    int port;
} SocketAddress;

typedef struct {
    char text[SOCKET_HOST_BYTES + 16];
} SocketAddressText;

// Gives "host:port", or "[number]:port" for IPv6.
static inline SocketAddressText socket_address_text(const SocketAddress *address) {
    SocketAddressText where;
    bool colons = strchr(address->host, ':') != NULL;
    snprintf(where.text, sizeof(where.text), colons ? "[%s]:%d" : "%s:%d", address->host, address->port);
    return where;
}

static inline bool socket_parse_port(const char *digits, int *port) {
    size_t n = strlen(digits);
    if (n == 0 || n > 5 || strspn(digits, "0123456789") != n) { return false; }
    *port = atoi(digits);
    return *port >= 1 && *port <= 65535;
}

// Reads "host", "host:port", "[IPv6]:port", "[IPv6]" or a bare IPv6 number. `what` (an option) begins the message.
static inline bool socket_parse_address(SocketAddress *address, const char *text, int default_port, const char *what,
                                        Error *error) {
    const char *first = strchr(text, ':'), *host = text, *rest = NULL;
    size_t n = strlen(text);
    address->port = default_port;
    if (text[0] == '[') {
        const char *bracket = strchr(text, ']');
        if (bracket == NULL) { return fail(error, "%s %.200s: a ] is missing after the IPv6 number", what, text); }
        host = text + 1, n = (size_t)(bracket - host), rest = bracket + 1;
    } else if (first != NULL && first == strrchr(text, ':')) {
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

// Looks up an address; freeaddrinfo frees *list. Returns getaddrinfo's status, 0 for success.
static inline int socket_resolve(const SocketAddress *address, struct addrinfo **list) {
    struct addrinfo hints;
    char port[16];
    memset(&hints, 0, sizeof(hints));
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    snprintf(port, sizeof(port), "%d", address->port);
    *list = NULL;
    return getaddrinfo(address->host, port, &hints, list);
}

static inline bool socket_address_is_number(const SocketAddress *address) {
    unsigned char bytes[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, address->host, bytes) == 1 || inet_pton(AF_INET6, address->host, bytes) == 1;
}

// Tells whether only this machine can reach an address: 127.0.0.0/8, ::1, and the first written as IPv6.
static inline bool socket_is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family != AF_INET6) { return false; }
    const struct in6_addr *number = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(number) || (IN6_IS_ADDR_V4MAPPED(number) && number->s6_addr[12] == 127);
}

// Tells whether a list has an address that is a loopback address, or that is none.
static inline bool socket_list_has(const struct addrinfo *list, bool loopback) {
    while (list != NULL && socket_is_loopback(list->ai_addr) != loopback) { list = list->ai_next; }
    return list != NULL;
}

// Tells whether another machine can reach this interface's address. A link-local address means nothing without the
// interface's name.
static inline bool socket_usable_interface(const struct ifaddrs *interface) {
    const struct sockaddr *address = interface->ifa_addr;
    if (address == NULL || !(interface->ifa_flags & IFF_UP) || (interface->ifa_flags & IFF_LOOPBACK)) { return false; }
    if (address->sa_family != AF_INET6) { return address->sa_family == AF_INET; }
    return !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

// Writes the numeric addresses of this machine, separated by spaces, into text. Leaves out what does not fit.
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
        if (used + strlen(number) + 2 > size) { break; }
        used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? " " : "", number);
    }
    freeifaddrs(list);
}

// ---- Sockets ----

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

// Waits until fd is ready (POLLIN or POLLOUT). Returns false when the deadline comes first.
static inline bool socket_wait(int fd, short events, double deadline) {
    for (;;) {
        struct pollfd p = {fd, events, 0};
        int n = poll(&p, 1, socket_milliseconds(deadline, 60000));
        if (n > 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) { return true; } // the next call on fd says why
        if (n == 0 && seconds_now() >= deadline) { return false; }
    }
}

// Programs do not inherit the socket, no call on it waits, and small frames leave at once.
static inline int socket_prepare(int fd) {
    int on = 1;
    if (fd < 0) { return fd; }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
#if defined(SO_NOSIGPIPE)
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
#endif
    return fd;
}

static inline int socket_create(int family) { return socket_prepare(socket(family, SOCK_STREAM, 0)); }
static inline int socket_accept(int listener) { return socket_prepare(accept(listener, NULL, NULL)); }

static inline int socket_close_failed(int fd, int code) {
    close(fd);
    errno = code;
    return -1;
}

// Listens at an address; -1 and errno on failure. The port is free again when the process ends (SO_REUSEADDR).
static inline int socket_listen_at(const struct sockaddr *address, socklen_t bytes) {
    int fd = socket_create(address->sa_family), on = 1, off = 0;
    if (fd < 0) { return -1; }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address->sa_family == AF_INET6) { setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)); }
    if (bind(fd, address, bytes) == 0 && listen(fd, SOMAXCONN) == 0) { return fd; }
    return socket_close_failed(fd, errno);
}

// Listens at all of this machine's addresses, IPv6 and IPv4; port 0 takes any free one. -1 and errno on failure.
static inline int socket_listen_everywhere(int port) {
    struct sockaddr_in6 all;
    struct sockaddr_in all4;
    memset(&all, 0, sizeof(all)), memset(&all4, 0, sizeof(all4)); // no address means all
    all.sin6_family = AF_INET6, all4.sin_family = AF_INET;
    all.sin6_port = all4.sin_port = htons((uint16_t)port);
    int fd = socket_listen_at((const struct sockaddr *)&all, sizeof(all));
    if (fd >= 0 || errno == EADDRINUSE || errno == EACCES) { return fd; }
    return socket_listen_at((const struct sockaddr *)&all4, sizeof(all4)); // a machine without IPv6
}

// Returns the port of a listening socket, 0 on failure.
static inline int socket_port(int fd) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof(address);
    memset(&address, 0, sizeof(address));
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) { return 0; }
    return ntohs(((struct sockaddr_in *)(void *)&address)->sin_port); // IPv6 has it at one place with IPv4
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
    return code == 0 ? fd : socket_close_failed(fd, code);
}

// Looks an address up, tries each result (or only those on the loopback) for some seconds, and connects to the first
// that answers. On failure returns -1 and sets errno, or *lookup to getaddrinfo's status (else 0).
static inline int socket_connect(const SocketAddress *address, bool only_loopback, double seconds, double deadline,
                                 int *lookup) {
    struct addrinfo *list;
    *lookup = socket_resolve(address, &list);
    if (*lookup != 0) { return -1; }
    int fd = -1, code = ETIMEDOUT;
    for (const struct addrinfo *i = list; i != NULL && fd < 0; i = i->ai_next) {
        double until = seconds_now() + seconds;
        if (only_loopback && !socket_is_loopback(i->ai_addr)) { continue; }
        fd = socket_connect_to(i->ai_addr, i->ai_addrlen, until < deadline ? until : deadline);
        if (fd < 0) { code = errno; }
    }
    freeaddrinfo(list);
    errno = code;
    return fd;
}

// Raises the limit of open files to `count`. False if the system does not allow it.
static inline bool socket_allow_open_files(int64_t count) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) { return true; }
    if (limit.rlim_cur == RLIM_INFINITY || (int64_t)limit.rlim_cur >= count) { return true; }
    if (limit.rlim_max != RLIM_INFINITY && (int64_t)limit.rlim_max < count) { return false; }
    limit.rlim_cur = (rlim_t)count;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// ---- Frames: a head, and data. All machines of a run have one byte order ----

typedef enum {
    // The start.
    FRAME_HELLO = 1, // to rank 0: the caller's nonce
    FRAME_CHALLENGE, // from rank 0: its nonce and its proof
    FRAME_JOIN,      // to rank 0: who this is, and its proof
    FRAME_WELCOME,   // from rank 0: wait for the other ranks
    FRAME_REFUSED,   // from rank 0, a text: the run does not start
    // Exchanges.
    FRAME_MINE,    // to rank 0: this rank's contribution
    FRAME_RESULT,  // from rank 0
    FRAME_FAILURE, // from rank 0, a text: the exchange has failed
    // The watch.
    FRAME_BEAT,    // a rank's progress
    FRAME_GOODBYE, // this rank ends in order
    FRAME_END      // a text: the run must end, and this is why
} FrameType;

typedef struct {
    uint32_t magic, type;
    int64_t bytes; // of the data that follows
    // Of an exchange: its number, its name, and a size that must be equal on all ranks.
    uint64_t sequence;
    int64_t size;
    char name[FRAME_NAME_BYTES];
} FrameHead;

// Holds a frame that has come.
typedef struct {
    FrameHead head;
    char *data; // head.bytes bytes and a NUL, in the same memory
} Frame;

static inline FrameHead frame_head(FrameType type, int64_t bytes) {
    FrameHead head;
    memset(&head, 0, sizeof(head));
    head.magic = FRAME_MAGIC;
    head.type = (uint32_t)type;
    head.bytes = bytes;
    return head;
}

// Makes a frame whose data is still to come; free() releases it. NULL: out of memory.
static inline Frame *frame_create(const FrameHead *head) {
    Frame *frame = (Frame *)malloc(sizeof(Frame) + (size_t)head->bytes + 1);
    if (frame == NULL) { return NULL; }
    frame->head = *head;
    frame->data = (char *)(frame + 1);
    frame->data[head->bytes] = '\0';
    return frame;
}

// Returns the words that a frame brings. They end within its data.
static inline const char *frame_text(const Frame *frame) {
    return frame->data[0] != '\0' ? frame->data : "no reason is given";
}

// Copies the data of a frame of this type and size, and releases the frame. False: it is another frame.
static inline bool frame_take(Frame *frame, FrameType type, void *data, size_t bytes) {
    bool fits = frame->head.type == (uint32_t)type && frame->head.bytes == (int64_t)bytes;
    if (fits) { memcpy(data, frame->data, bytes); }
    free(frame);
    return fits;
}

// ---- Links: frames over one TCP connection. One thread at a time uses a link ----

typedef struct {
    int fd;               // -1: none
    double opened, heard; // when it began, and when bytes came last
    int64_t limit;        // the most data that a frame may bring
    FrameHead head;       // of the frame that comes
    Frame *in;            // that frame, once its head is here
    size_t received;      // bytes of the frame that comes
    char *out;            // (waiting): frames on their way, until all of them are sent
    size_t waiting, sent; // bytes of out
} Link;

// Says how receiving ended.
typedef enum {
    LINK_FRAME,   // a whole frame is here
    LINK_WAIT,    // nothing more is here yet
    LINK_TIMEOUT, // the deadline came first
    LINK_CLOSED,  // the other end has closed the connection, or its process is gone
    LINK_BROKEN   // errno says why; EBADMSG: what came is no frame
} LinkStatus;

static inline void link_open(Link *link, int fd, int64_t limit) {
    memset(link, 0, sizeof(*link));
    link->fd = fd;
    link->limit = limit;
    link->opened = link->heard = seconds_now();
}

static inline void link_close(Link *link) {
    socket_close(&link->fd);
    free(link->in), free(link->out);
    link->in = NULL, link->out = NULL;
    link->waiting = 0;
}

static inline void link_move(Link *to, Link *from) {
    *to = *from;
    memset(from, 0, sizeof(*from));
    from->fd = -1;
}

// Tells whether something waits to be sent.
static inline bool link_waits(const Link *link) { return link->fd >= 0 && link->waiting > 0; }

// Returns the events that a link waits for, as poll() takes them.
static inline short link_events(const Link *link) { return (short)(POLLIN | (link_waits(link) ? POLLOUT : 0)); }

static inline bool socket_would_wait(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Sends what waits, as far as it goes without blocking. Drops what cannot be sent: reading the link says why.
static inline void link_flush(Link *link) {
    while (link_waits(link)) {
        ssize_t n = send(link->fd, link->out + link->sent, link->waiting - link->sent, MSG_NOSIGNAL);
        if (n < 0 && socket_would_wait()) { return; }
        if (n > 0) { link->sent += (size_t)n; }
        if (n > 0 && link->sent < link->waiting) { continue; }
        free(link->out);
        link->out = NULL, link->waiting = link->sent = 0;
    }
}

// Sends a frame. Without memory for it, it ends the connection: the other end must not wait for it.
static inline void link_send(Link *link, const FrameHead *head, const void *data) {
    size_t n = sizeof(*head) + (size_t)head->bytes;
    if (link->fd < 0) { return; }
    char *longer = (char *)realloc(link->out, link->waiting + n);
    if (longer == NULL) {
        shutdown(link->fd, SHUT_RDWR);
        return;
    }
    memcpy(longer + link->waiting, head, sizeof(*head));
    if (data != NULL) { memcpy(longer + link->waiting + sizeof(*head), data, (size_t)head->bytes); }
    link->out = longer, link->waiting += n;
    link_flush(link);
}

// Sends one frame over all open links.
static inline void links_send(Link *links, int count, FrameType type, const void *data, int64_t bytes) {
    FrameHead head = frame_head(type, bytes);
    for (int i = 0; i < count; i++) { link_send(&links[i], &head, data); }
}

// Judges the part of the head that is here. Makes room for the data when the head is whole.
static inline bool link_check_head(Link *link) {
    bool good = link->received < sizeof(link->head.magic) || link->head.magic == FRAME_MAGIC;
    bool whole = link->received >= sizeof(link->head);
    if (good && whole) { good = link->head.bytes >= 0 && link->head.bytes <= link->limit; }
    if (good && whole && link->in == NULL) { link->in = frame_create(&link->head); }
    errno = good ? ENOMEM : EBADMSG;
    return good && (!whole || link->in != NULL);
}

// Receives at most one frame, without waiting. *frame then belongs to the caller.
static inline LinkStatus link_receive(Link *link, Frame **frame) {
    const size_t head = sizeof(link->head);
    for (;;) {
        char *to = link->in != NULL ? link->in->data + (link->received - head) : (char *)&link->head + link->received;
        size_t whole = head + (link->in != NULL ? (size_t)link->in->head.bytes : 0);
        if (link->in != NULL && link->received == whole) {
            *frame = link->in;
            link->in = NULL, link->received = 0;
            return LINK_FRAME;
        }
        ssize_t n = recv(link->fd, to, whole - link->received, 0);
        if (n == 0) { return LINK_CLOSED; }
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0 && socket_would_wait()) { return LINK_WAIT; }
        if (n < 0) { return errno == ECONNRESET || errno == EPIPE ? LINK_CLOSED : LINK_BROKEN; }
        link->received += (size_t)n;
        link->heard = seconds_now();
        if (!link_check_head(link)) { return LINK_BROKEN; }
    }
}

// Waits for a frame.
static inline LinkStatus link_await(Link *link, Frame **frame, double deadline) {
    for (;;) {
        link_flush(link);
        LinkStatus status = link_receive(link, frame);
        if (status != LINK_WAIT) { return status; }
        if (!socket_wait(link->fd, link_events(link), deadline)) { return LINK_TIMEOUT; }
    }
}

// Throws away the bytes that have arrived. True when the other end has closed.
static inline bool socket_drain(int fd) {
    char waste[4096];
    for (int i = 0; i < 256; i++) { // the other end may never stop sending
        ssize_t n = recv(fd, waste, sizeof(waste), 0);
        if (n == 0) { return true; }
        if (n < 0) { return !socket_would_wait(); }
    }
    return false;
}

// Closes links when the other ends have read everything, or at the deadline. close() alone sends a reset if bytes are
// unread, and the reset may overtake the last frame.
static inline void links_hang_up(Link *links, int count, double deadline) {
    for (int i = 0; i < count; i++) {
        if (links[i].fd >= 0 && !link_waits(&links[i])) { shutdown(links[i].fd, SHUT_WR); }
    }
    for (Link *link = links; link < links + count; link++) {
        if (link->fd < 0) { continue; }
        while (link_waits(link) && socket_wait(link->fd, POLLOUT, deadline)) { link_flush(link); }
        shutdown(link->fd, SHUT_WR);
        while (!socket_drain(link->fd) && seconds_now() < deadline && socket_wait(link->fd, POLLIN, deadline)) {}
        link_close(link);
    }
}

// Adds open links to an array for poll(). Returns the new number of its elements.
static inline int links_poll(const Link *links, int count, struct pollfd *polled, int n) {
    for (int i = 0; i < count; i++) {
        struct pollfd p = {links[i].fd, link_events(&links[i]), 0};
        if (p.fd >= 0) { polled[n++] = p; }
    }
    return n;
}

#endif // LLMC_TRANSPORT_H
