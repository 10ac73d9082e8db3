// Sockets, addresses and texts of the emulated NCCL, for the ranks and for the server.
#include "nccl_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace emu {
namespace nccl {

// ---- Numbers and texts ----

std::string words(const char *text, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(line, sizeof(line), text, arguments);
    va_end(arguments);
    return line;
}

uint64_t random_number() {
    uint64_t number = 0;
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) { number = static_cast<uint64_t>(getpid()); }
    return number;
}

// Identifies this boot of this machine and this network namespace.
uint64_t network_number() {
    uint64_t hash = 1469598103934665603u;
    auto mix = [&hash](uint64_t x) { hash = (hash ^ x) * 1099511628211u; };
    if (FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re")) {
        for (int c = fgetc(file); c != EOF; c = fgetc(file)) { mix(static_cast<uint64_t>(c)); }
        fclose(file);
    }
    struct stat status;
    if (stat("/proc/self/ns/net", &status) == 0) { mix(status.st_ino); }
    return hash;
}

std::string host_name() {
    char name[64] = "";
    gethostname(name, sizeof(name) - 1);
    return name;
}

Line to_line(Source at) {
    Line line = {};
    snprintf(line.file, sizeof(line.file), "%s", at.file ? at.file : "an unknown file");
    line.line = at.line;
    return line;
}

std::string to_text(const Line &at) { return words("%s:%d", at.file, at.line); }

const char *name_of(Kind kind) {
    static const char *const NAMES[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                                        "ncclReduce",    "ncclSend",          "ncclRecv",      "ncclCommDestroy"};
    return NAMES[kind];
}

std::string to_text(const Call &call) {
    std::string text = name_of(call.kind);
    if (call.kind == GOODBYE) { return text; }
    text += words(" of %zu %s", static_cast<size_t>(call.count), name_of_type(call.type));
    bool reduces = call.kind == ALL_REDUCE || call.kind == REDUCE_SCATTER || call.kind == REDUCE;
    if (reduces) { text += words(" (%s)", name_of_reduction(call.reduction)); }
    if (call.kind == REDUCE || call.kind == SEND) { text += words(" to rank %d", call.root); }
    if (call.kind == BROADCAST || call.kind == RECEIVE) { text += words(" from rank %d", call.root); }
    return text;
}

// ---- Sockets ----

static int bound_socket(int family, const sockaddr *address, socklen_t bytes) {
    int made = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), no = 0, yes = 1;
    if (made < 0) { return -1; }
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)); // also for the connections that it takes
    if (family == AF_INET6) { setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)); }
    if (bind(made, address, bytes) == 0 && listen(made, 1024) == 0) { return made; }
    int error = errno;
    close(made);
    errno = error;
    return -1;
}

int listen_anywhere(uint16_t *port) {
    sockaddr_in6 six = {};
    sockaddr_in four = {};
    six.sin6_family = AF_INET6, four.sin_family = AF_INET;
    int made = bound_socket(AF_INET6, reinterpret_cast<sockaddr *>(&six), sizeof(six)); // takes IPv4 too
    if (made < 0) { made = bound_socket(AF_INET, reinterpret_cast<sockaddr *>(&four), sizeof(four)); }
    sockaddr_storage got;
    socklen_t bytes = sizeof(got);
    if (made < 0 || getsockname(made, reinterpret_cast<sockaddr *>(&got), &bytes) != 0) { return -1; }
    *port = ntohs(reinterpret_cast<sockaddr_in *>(&got)->sin_port); // IPv4 and IPv6 have the port at one place
    return made;
}

static bool get_address(const sockaddr *from, Address *address) {
    *address = {};
    if (from->sa_family == AF_INET) {
        memcpy(address->bytes, &reinterpret_cast<const sockaddr_in *>(from)->sin_addr, 4);
        return true;
    }
    if (from->sa_family != AF_INET6) { return false; }
    const in6_addr &six = reinterpret_cast<const sockaddr_in6 *>(from)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&six)) { return false; } // useless without the name of an interface
    address->is_v6 = 1;
    memcpy(address->bytes, &six, 16);
    return true;
}

// Lists the IPv4 addresses first.
std::vector<Address> own_addresses() {
    std::vector<Address> found;
    ifaddrs *all = nullptr;
    if (getifaddrs(&all) != 0) { return found; }
    for (int is_v6 = 0; is_v6 < 2; is_v6++) {
        for (ifaddrs *i = all; i != nullptr; i = i->ifa_next) {
            Address address;
            bool usable = i->ifa_addr && (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK);
            if (usable && get_address(i->ifa_addr, &address) && address.is_v6 == is_v6) { found.push_back(address); }
        }
    }
    freeifaddrs(all);
    return found;
}

// Waits for the end of a connect that does not block. Returns 0 or an errno.
static int finish_connect(int socket, int milliseconds) {
    pollfd wait = {socket, POLLOUT, 0};
    int ready;
    do { ready = poll(&wait, 1, milliseconds); } while (ready < 0 && errno == EINTR);
    int error = ETIMEDOUT;
    socklen_t bytes = sizeof(error);
    if (ready > 0) { getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes); }
    return error;
}

static int try_connect(const Address &address, uint16_t port, std::string *why) {
    constexpr int patience = 10000; // ms, for an address that does not answer at all
    sockaddr_in6 six = {};
    sockaddr_in four = {};
    six.sin6_family = AF_INET6, six.sin6_port = htons(port), memcpy(&six.sin6_addr, address.bytes, 16);
    four.sin_family = AF_INET, four.sin_port = htons(port), memcpy(&four.sin_addr, address.bytes, 4);
    int made = socket(address.is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
    int error = made < 0 ? errno : 0;
    sockaddr *to = address.is_v6 ? reinterpret_cast<sockaddr *>(&six) : reinterpret_cast<sockaddr *>(&four);
    socklen_t bytes = address.is_v6 ? sizeof(six) : sizeof(four);
    if (!error && connect(made, to, bytes) != 0) {
        error = errno == EINPROGRESS || errno == EINTR ? finish_connect(made, patience) : errno;
    }
    if (!error) {
        setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
        return made;
    }
    char text[INET6_ADDRSTRLEN] = "";
    inet_ntop(address.is_v6 ? AF_INET6 : AF_INET, address.bytes, text, sizeof(text));
    *why += words("%s%s port %u: %s", why->empty() ? "" : "; ", text, port, strerror(error));
    if (made >= 0) { close(made); }
    return -1;
}

// The server listened before the id existed, so one try is enough.
int connect_to(const Id &id, std::string *why) {
    if (id.network == network_number()) {
        Address loopback = {0, {127, 0, 0, 1}}, loopback6 = {1, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
        int made = try_connect(loopback, id.port, why);
        return made >= 0 ? made : try_connect(loopback6, id.port, why);
    }
    for (int i = 0; i < id.addresses && i < MAX_ADDRESSES; i++) {
        int made = try_connect(id.address[i], id.port, why);
        if (made >= 0) { return made; }
    }
    if (id.addresses == 0) { *why = "the machine of the server has no address but the loopback's"; }
    return -1;
}

// The descriptors may be non-blocking.
static bool wait_until(int socket, short events, short *got) {
    pollfd wait = {socket, events, 0};
    int ready;
    do { ready = poll(&wait, 1, -1); } while (ready < 0 && errno == EINTR);
    *got = wait.revents;
    return ready > 0;
}

static bool is_transient(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

static bool send_until(int socket, const void *data, size_t bytes, short stop) {
    const char *next = static_cast<const char *>(data);
    while (bytes > 0) {
        short got = 0;
        if (!wait_until(socket, static_cast<short>(POLLOUT | stop), &got)) { return false; }
        if (got & stop) { return true; }
        ssize_t n = send(socket, next, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && !is_transient(errno)) { return false; }
        if (n > 0) { next += n, bytes -= static_cast<size_t>(n); }
    }
    return true;
}

bool send_all(int socket, const void *data, size_t bytes) { return send_until(socket, data, bytes, 0); }
bool send_unless_answered(int socket, const void *data, size_t bytes) {
    return send_until(socket, data, bytes, POLLIN);
}

bool receive_all(int socket, void *data, size_t bytes) {
    char *next = static_cast<char *>(data);
    while (bytes > 0) {
        ssize_t n = recv(socket, next, bytes, MSG_DONTWAIT);
        short got;
        if (n == 0 || (n < 0 && !is_transient(errno))) { return false; }
        if (n < 0 && !wait_until(socket, POLLIN, &got)) { return false; }
        if (n > 0) { next += n, bytes -= static_cast<size_t>(n); }
    }
    return true;
}

} // namespace nccl
} // namespace emu
