// The server of an emulated NCCL communicator: a thread of the process that made its id. It lets the ranks in, takes
// each collective's data and checks that all ranks ask for one operation. It reduces in the order of the ranks, so
// every run gives equal bits, and sends every rank its part. A send goes on to its receiver as soon as both ranks have
// called, whatever all other ranks do. A rank that ends without a goodbye ends the communicator, and the server tells
// all remaining ranks at once.
#include "nccl_wire.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <thread>

namespace emu {
namespace nccl {

struct Transfer { // a send or a receive
    Call call;
    std::vector<char> data; // of a send, and of a receive that is done
    bool done;
};

struct Member { // a rank; at first only a connection
    int socket = -1;
    size_t hello_bytes = 0; // bytes received
    Hello hello = {};
    bool joined = false, called = false;
    Call call = {};
    std::vector<Transfer> transfers = {}; // of the call
};

class Server {
  public:
    Server(int listener, uint64_t nonce) : listener(listener), nonce(nonce) {}
    void run() {
        if (join()) {
            while (gather_calls() && !all_said_goodbye() && calls_match() && collective()) {}
            if (all_said_goodbye()) { answer_all(DONE, ""); }
        }
        linger();
    }

  private:
    bool join();
    void accept_one();
    bool read_hello(Member *newcomer);
    bool admit(Member *newcomer);
    std::string why_not(const Hello &hello, std::string *details) const;
    bool gather_calls();
    bool take_call(Member *member, short events);
    bool take_transfers(Member *member);
    bool match_transfers();
    bool match(Member *sender, Member *receiver);
    bool no_transfer_waits();
    static const Call &call_of(const Member &member);
    bool mistake(Member *m, const Call &call, const char *what, const Member &peer, const Call &other);
    bool is_waited_for_in_vain();
    bool all_said_goodbye() const;
    bool calls_match();
    bool collective();
    bool receive_data(Member *member, std::vector<char> *data);
    bool receive_and_reduce();
    bool receive_and_gather();
    bool send_results();
    bool ended(const Member &member);
    void tell_others(const Member *member, const std::string &text);
    void answer(Member *member, AnswerKind kind, const void *data, size_t bytes);
    void answer(Member *member, AnswerKind kind, const std::string &text) {
        answer(member, kind, text.data(), text.size());
    }
    void answer_all(AnswerKind kind, const std::string &text) {
        for (Member *member : in_order_of_answers()) { answer(member, kind, text); }
    }
    void close_member(Member *member);
    void linger();

    bool is_own_process(const Hello &hello) const { return hello.pid == getpid() && hello.network == network; }
    std::vector<Member *> in_order_of_answers();

    int listener;
    uint64_t nonce, network = network_number();
    int ranks = 0, in = 0;         // ranks expected (0: not known yet), ranks joined
    std::vector<Member> members;   // [ranks], in order of rank
    std::vector<Member> newcomers; // connections that have not said which rank they are
    std::vector<char> total, part; // data of the collective
};

static std::string who(const Hello &hello) {
    return words("rank %d (pid %d on %s)", hello.rank, hello.pid, hello.host);
}

// ---- Letting the ranks in ----

// Lets ranks in until all are there. A silent newcomer holds up no rank. A newcomer with another protocol is dropped.
bool Server::join() {
    while (ranks == 0 || in < ranks) {
        std::vector<pollfd> waits(1, {listener, POLLIN, 0});
        for (const Member &m : newcomers) { waits.push_back({m.socket, POLLIN, 0}); }
        for (const Member &m : members) { waits.push_back({m.socket, POLLRDHUP, 0}); }
        if (poll(waits.data(), waits.size(), -1) < 0) { continue; }
        const size_t known = newcomers.size();
        for (size_t i = 0; i < members.size(); i++) {
            if (waits[1 + known + i].revents) { return ended(members[i]); }
        }
        for (size_t i = 0; i < known; i++) {
            if (waits[1 + i].revents && !read_hello(&newcomers[i])) { return false; }
        }
        if (waits[0].revents) { accept_one(); }
        for (size_t i = newcomers.size(); i-- > 0;) {
            if (newcomers[i].socket < 0) { newcomers.erase(newcomers.begin() + static_cast<ptrdiff_t>(i)); }
        }
    }
    close(listener);
    for (Member &newcomer : newcomers) { close_member(&newcomer); }
    listener = -1;
    const Hello &last = in_order_of_answers().back()->hello;
    answer_all(DONE, is_own_process(last) ? who(last) : "the process that made the id");
    return true;
}

void Server::accept_one() {
    Member newcomer;
    newcomer.socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (newcomer.socket >= 0) { newcomers.push_back(newcomer); }
}

// Takes the received bytes. Returns false if the communicator cannot come into being.
bool Server::read_hello(Member *newcomer) {
    char *to = reinterpret_cast<char *>(&newcomer->hello) + newcomer->hello_bytes;
    ssize_t n = recv(newcomer->socket, to, sizeof(Hello) - newcomer->hello_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) { return true; }
    if (n > 0) { newcomer->hello_bytes += static_cast<size_t>(n); }
    const Hello &hello = newcomer->hello;
    bool complete = newcomer->hello_bytes == sizeof(Hello);
    bool one_of_us = memcmp(hello.magic, ID_MAGIC, sizeof(hello.magic)) == 0 && hello.nonce == nonce;
    if (n <= 0 || (complete && !one_of_us)) { close_member(newcomer); }
    return newcomer->socket < 0 || !complete || admit(newcomer);
}

bool Server::admit(Member *newcomer) {
    if (ranks == 0) {
        ranks = newcomer->hello.ranks;
        members.resize(static_cast<size_t>(ranks));
    }
    std::string details, problem = why_not(newcomer->hello, &details);
    if (!problem.empty()) {
        answer(newcomer, REPORT, problem + "\n" + details);
        tell_others(newcomer, problem + ", at " + to_text(newcomer->hello.at));
        return false;
    }
    newcomer->joined = true;
    members[static_cast<size_t>(newcomer->hello.rank)] = *newcomer;
    newcomer->socket = -1; // the member owns it now
    in++;
    return true;
}

// Returns "" if the newcomer may come in.
std::string Server::why_not(const Hello &hello, std::string *details) const {
    std::string me = words("ncclCommInitRank of rank %d of %d", hello.rank, hello.ranks);
    for (const Member &m : members) {
        if (!m.joined) { continue; }
        const bool same_machine = m.hello.network == hello.network && strcmp(m.hello.host, hello.host) == 0;
        *details = "  " + who(m.hello) + " called it at " + to_text(m.hello.at);
        if (hello.ranks != m.hello.ranks) { return me + words(", and another rank says %d ranks", m.hello.ranks); }
        if (hello.rank == m.hello.rank) { return me + ", and there is such a rank already"; }
        if (same_machine && hello.device == m.hello.device) {
            return me + words(" on device %d, which rank %d uses", hello.device, m.hello.rank);
        }
    }
    return "";
}

// ---- One collective ----

// Waits for a collective of each rank, and does the transfers meanwhile. Returns false if the communicator has failed.
bool Server::gather_calls() {
    for (Member &m : members) { m.called = false, m.transfers.clear(); }
    for (size_t calls = 0; calls < members.size();) {
        std::vector<pollfd> waits;
        for (const Member &m : members) {
            waits.push_back({m.socket, static_cast<short>(m.called ? POLLRDHUP : POLLIN | POLLRDHUP), 0});
        }
        if (poll(waits.data(), waits.size(), -1) < 0) { continue; }
        for (size_t i = 0; i < members.size(); i++) {
            if (waits[i].revents == 0) { continue; }
            if (!take_call(&members[i], waits[i].revents)) { return ended(members[i]); }
        }
        if (!match_transfers()) { return false; }
        calls = 0;
        for (const Member &m : members) { calls += m.called; }
        if (is_waited_for_in_vain()) { return false; }
    }
    return no_transfer_waits();
}

// Takes what the rank has sent. Returns false if the rank has ended without a goodbye.
bool Server::take_call(Member *m, short events) {
    if (m->called && m->call.kind == GOODBYE) {
        close_member(m); // it has said goodbye, so it may end
        return true;
    }
    if (m->called) { return (events & (POLLRDHUP | POLLHUP | POLLERR)) == 0; }
    m->called = receive_all(m->socket, &m->call, sizeof(m->call));
    return m->called && take_transfers(m);
}

// ---- Sends and receives ----

// Takes the data of a call, if it is one of transfers.
bool Server::take_transfers(Member *m) {
    if (m->call.transfers == 0) { return true; }
    std::vector<char> data(m->call.bytes);
    if (!receive_all(m->socket, data.data(), data.size())) { return false; }
    size_t at = m->call.transfers * sizeof(Call);
    for (size_t i = 0; i < m->call.transfers; i++) {
        Transfer transfer = {{}, {}, false};
        memcpy(&transfer.call, data.data() + i * sizeof(Call), sizeof(Call));
        auto begin = data.begin() + static_cast<ptrdiff_t>(at);
        transfer.data.assign(begin, begin + static_cast<ptrdiff_t>(transfer.call.bytes));
        at += transfer.call.bytes;
        m->transfers.push_back(transfer);
    }
    return true;
}

// Does all transfers whose two ranks have called, and answers the ranks that wait for no more. Returns false if a send
// and its receive differ.
bool Server::match_transfers() {
    for (Member &sender : members) {
        for (Member &receiver : members) {
            if (!match(&sender, &receiver)) { return false; }
        }
    }
    for (Member *m : in_order_of_answers()) {
        std::vector<char> received;
        bool done = !m->transfers.empty();
        for (const Transfer &t : m->transfers) {
            done = done && t.done;
            if (t.call.kind == RECEIVE) { received.insert(received.end(), t.data.begin(), t.data.end()); }
        }
        if (!done) { continue; }
        m->called = false;
        m->transfers.clear();
        answer(m, DONE, received.data(), received.size());
    }
    return true;
}

// Returns the first transfer of this kind to or from a peer that is not done.
static Transfer *waiting(Member *m, int peer, Kind kind) {
    for (Transfer &t : m->transfers) {
        if (!t.done && t.call.kind == kind && t.call.root == peer) { return &t; }
    }
    return nullptr;
}

// The n-th send from one rank to another belongs to the n-th receive there.
bool Server::match(Member *sender, Member *receiver) {
    for (;;) {
        Transfer *send = waiting(sender, receiver->hello.rank, SEND);
        Transfer *receive = waiting(receiver, sender->hello.rank, RECEIVE);
        if (!send || !receive) { return true; }
        if (send->call.type != receive->call.type || send->call.count != receive->call.count) {
            return mistake(receiver, receive->call, "receives something else than its peer sends", *sender, send->call);
        }
        receive->data.swap(send->data);
        send->done = receive->done = true;
    }
}

// All ranks have called. Returns false if transfers are left: nobody will come for them.
bool Server::no_transfer_waits() {
    for (Member &m : members) {
        for (const Transfer &t : m.transfers) {
            if (t.done) { continue; }
            const Member &peer = members[static_cast<size_t>(t.call.root)];
            return mistake(&m, t.call, "waits for ever", peer, call_of(peer));
        }
    }
    return true;
}

// Returns what a rank waits in.
const Call &Server::call_of(const Member &member) {
    for (const Transfer &t : member.transfers) {
        if (!t.done) { return t.call; }
    }
    return member.call;
}

// Lets a rank report its transfer, beside what the peer does. Always returns false.
bool Server::mistake(Member *m, const Call &call, const char *what, const Member &peer, const Call &other) {
    std::string problem = words("a transfer of rank %d ", m->hello.rank) + what;
    std::string mine = to_text(call) + ", at " + to_text(call.at);
    std::string theirs = words("rank %d calls ", peer.hello.rank) + to_text(other) + ", at " + to_text(other.at);
    for (Member *other : in_order_of_answers()) {
        if (other == m) { answer(m, REPORT, problem + "\n  " + mine + "\n  " + theirs); }
        if (other != m) { answer(other, FAILED, problem + ": " + mine + ", and " + theirs); }
    }
    return false;
}

// Some ranks are in a collective, and another rank has left for good.
bool Server::is_waited_for_in_vain() {
    const Member *gone = nullptr;
    bool in_vain = false;
    for (const Member &m : members) {
        if (m.called && m.call.kind == GOODBYE) { gone = &m; }
        in_vain = in_vain || (m.called && m.call.kind != GOODBYE && m.transfers.empty());
    }
    if (!gone || !in_vain) { return false; }
    for (Member *m : in_order_of_answers()) {
        std::string waits = words(" on rank %d waits for rank %d, which has called ncclCommDestroy\n  at ",
                                  m->hello.rank, gone->hello.rank);
        const bool left = m->called && m->call.kind == GOODBYE;
        if (left) { answer(m, DONE, ""); }
        if (m->called && !left) { answer(m, REPORT, to_text(m->call) + waits + to_text(gone->call.at)); }
        if (!m->called) { answer(m, FAILED, who(gone->hello) + " has left, and others wait for it"); }
    }
    return true;
}

bool Server::all_said_goodbye() const {
    for (const Member &m : members) {
        if (!m.called || m.call.kind != GOODBYE) { return false; }
    }
    return !members.empty();
}

static bool same_call(const Call &a, const Call &b) {
    return a.kind == b.kind && a.type == b.type && a.reduction == b.reduction && a.root == b.root && a.count == b.count;
}

// The first rank that differs from rank 0 reports it.
bool Server::calls_match() {
    const Member &first = members[0];
    for (Member &m : members) {
        if (same_call(first.call, m.call)) { continue; }
        std::string theirs = to_text(first.call) + ", at " + to_text(first.call.at), mine = to_text(m.call);
        answer(&m, REPORT,
               words("collective %zu of the communicator differs: rank %d calls ", static_cast<size_t>(m.call.number),
                     m.hello.rank) +
                   mine + "\n  rank 0 calls " + theirs);
        tell_others(&m, words("rank %d calls ", m.hello.rank) + mine + ", at " + to_text(m.call.at) +
                            ", and rank 0 calls " + theirs);
        return false;
    }
    return true;
}

bool Server::collective() {
    switch (members[0].call.kind) {
    case ALL_GATHER: return receive_and_gather() && send_results();
    case BROADCAST: {
        return receive_data(&members[static_cast<size_t>(members[0].call.root)], &total) && send_results();
    }
    default: return receive_and_reduce() && send_results();
    }
}

bool Server::receive_data(Member *member, std::vector<char> *data) {
    data->resize(member->call.bytes);
    return receive_all(member->socket, data->data(), data->size()) || ended(*member);
}

bool Server::receive_and_reduce() {
    const Call &call = members[0].call;
    for (Member &m : members) {
        if (!receive_data(&m, m.hello.rank == 0 ? &total : &part)) { return false; }
        const size_t count = total.size() / size_of_type(call.type);
        if (m.hello.rank > 0) { reduce(call.type, call.reduction, total.data(), part.data(), count); }
    }
    if (call.reduction == ncclAvg) { divide(call.type, total.data(), total.size() / size_of_type(call.type), ranks); }
    return true;
}

bool Server::receive_and_gather() {
    const size_t bytes = members[0].call.bytes;
    total.resize(bytes * members.size());
    for (size_t r = 0; r < members.size(); r++) {
        if (!receive_all(members[r].socket, total.data() + r * bytes, bytes)) { return ended(members[r]); }
    }
    return true;
}

// If a rank ends now, the remaining ranks still get their results.
bool Server::send_results() {
    const Call call = members[0].call;
    const size_t share = total.size() / members.size();
    for (Member *m : in_order_of_answers()) {
        const size_t rank = static_cast<size_t>(m->hello.rank);
        const bool root = m->hello.rank == call.root;
        size_t begin = 0, bytes = total.size();
        if (call.kind == REDUCE_SCATTER) { begin = rank * share, bytes = share; }
        if ((call.kind == BROADCAST && root) || (call.kind == REDUCE && !root)) { bytes = 0; }
        answer(m, DONE, total.data() + begin, bytes);
    }
    return true;
}

// ---- Talking to a rank ----

// The rank of this process comes last. It may end the process when it goes on, and then all ranks have their answers.
std::vector<Member *> Server::in_order_of_answers() {
    std::vector<Member *> all;
    for (Member &m : members) { all.push_back(&m); }
    std::stable_partition(all.begin(), all.end(), [this](const Member *m) { return !is_own_process(m->hello); });
    return all;
}

void Server::tell_others(const Member *member, const std::string &text) {
    std::vector<Member *> all = in_order_of_answers();
    for (Member &newcomer : newcomers) { all.insert(all.begin(), &newcomer); }
    for (Member *other : all) {
        if (other != member) { answer(other, FAILED, text); }
    }
}

// Always returns false: the communicator has failed.
bool Server::ended(const Member &member) {
    tell_others(&member, who(member.hello) + " has ended, or has aborted its communicator");
    return false;
}

// If the rank has gone, the next wait for it notices.
void Server::answer(Member *member, AnswerKind kind, const void *data, size_t bytes) {
    Answer head = {kind, 0, bytes};
    if (member->socket < 0) { return; }
    if (send_all(member->socket, &head, sizeof(head))) { send_all(member->socket, data, bytes); }
}

void Server::close_member(Member *member) {
    if (member->socket >= 0) { close(member->socket); }
    member->socket = -1;
}

// Waits, with all work done, until every rank has read its last answer and closed the connection.
void Server::linger() {
    if (listener >= 0) { close(listener); }
    members.insert(members.end(), newcomers.begin(), newcomers.end());
    part.resize(1 << 16);
    for (bool open = true; open;) {
        std::vector<pollfd> waits;
        open = false;
        for (const Member &m : members) { waits.push_back({m.socket, POLLIN, 0}); }
        for (const Member &m : members) { open = open || m.socket >= 0; }
        if (!open || poll(waits.data(), waits.size(), -1) < 0) { continue; }
        for (size_t i = 0; i < members.size(); i++) {
            if (waits[i].revents == 0) { continue; }
            ssize_t n = recv(members[i].socket, part.data(), part.size(), MSG_DONTWAIT);
            if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) { close_member(&members[i]); }
        }
    }
}

// Signals belong to the program. This thread takes only the signals of its own mistakes.
void start_server(int listener, uint64_t nonce) {
    sigset_t all, before;
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) { sigdelset(&all, fault); }
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([listener, nonce] { Server(listener, nonce).run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

} // namespace nccl
} // namespace emu
