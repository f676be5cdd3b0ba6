// meeting.h: how the ranks of a process group that has no communicator to begin with find each
// other: through a TCPStore, as libdlcoll wants it. A group with another store (a file, a table in
// memory, one of the program's) gets one for the time of the meeting:
//
//   rank 0       serves a TCPStore, and stores its port, its host, all addresses of its host and a
//                number that nobody else has
//   the others   try these addresses until the store that answers has that number, and store the
//                address by which they have come
//   rank 0       takes the address by which the lowest rank of another host has come
#ifndef DLCOLL_TORCH_MEETING_H
#define DLCOLL_TORCH_MEETING_H

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <arpa/inet.h>
#include <fstream>
#include <ifaddrs.h>
#include <net/if.h>
#include <random>
#include <sstream>
#include <unistd.h>

#include "types.h"

namespace
{

using StorePtr = c10::intrusive_ptr<c10d::Store>;

class Meeting
{
  public:
    Meeting(const StorePtr &given, int rank, int size, Millis timeout)
        : given_(given), rank_(rank), size_(size),
          until_(std::chrono::steady_clock::now() + timeout)
    {
        StorePtr base = given;
        while (auto *prefix = dynamic_cast<c10d::PrefixStore *>(base.get()))
            base = prefix->getUnderlyingStore();
        if (auto *tcp = dynamic_cast<c10d::TCPStore *>(base.get()))
            open(url_of(tcp->getHost(), tcp->getPort()), left());
        else if (rank == 0)
            lead();
        else
            follow();
    }

    ~Meeting()
    {
        dlcoll_store_close(store_);
    }
    Meeting(const Meeting &) = delete;
    Meeting &operator=(const Meeting &) = delete;

    dlcoll_store *store() const
    {
        return store_;
    }

    Millis left() const
    {
        auto ms = std::chrono::duration_cast<Millis>(until_ - std::chrono::steady_clock::now());
        return std::max(ms, Millis(1));
    }

  private:
    static std::string url_of(const std::string &host, int port)
    {
        bool v6 = host.find(':') != std::string::npos && host[0] != '[';
        return v6 ? c10::str("tcp://[", host, "]:", port) : c10::str("tcp://", host, ":", port);
    }

    // The same for all processes that share a network.
    static std::string this_host()
    {
        std::string boot;
        char space[64] = "";
        std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
        if (readlink("/proc/self/ns/net", space, sizeof(space) - 1) < 0)
            space[0] = '\0';
        return boot + space;
    }

    // Those of interfaces that are up, loopback and link-local ones left out.
    static std::vector<std::string> own_addresses()
    {
        std::vector<std::string> out;
        ifaddrs *list = nullptr;
        if (getifaddrs(&list) < 0)
            return out;
        for (int family : {AF_INET, AF_INET6}) {
            for (ifaddrs *i = list; i; i = i->ifa_next) {
                char text[INET6_ADDRSTRLEN];
                if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) ||
                    (i->ifa_flags & IFF_LOOPBACK))
                    continue;
                const void *at = &reinterpret_cast<sockaddr_in *>(i->ifa_addr)->sin_addr;
                if (family == AF_INET6) {
                    auto *six = &reinterpret_cast<sockaddr_in6 *>(i->ifa_addr)->sin6_addr;
                    if (IN6_IS_ADDR_LINKLOCAL(six))
                        continue;
                    at = six;
                }
                if (inet_ntop(family, at, text, sizeof(text)))
                    out.emplace_back(text);
            }
        }
        freeifaddrs(list);
        return out;
    }

    void open(const std::string &url, Millis timeout)
    {
        int code = dlcoll_store_open(&store_, url.c_str(), 0, timeout.count());
        if (code < 0)
            fail(error_text(nullptr, code));
    }

    std::string get(const std::string &key, Millis timeout)
    {
        given_->wait({key}, timeout);
        std::vector<uint8_t> value = given_->get(key);
        return std::string(value.begin(), value.end());
    }

    [[noreturn]] void nobody(int whom, const std::string &why) const
    {
        fail(c10::str("timeout in init_process_group: rank ", rank_, " waited for rank ", whom,
                      " in vain: ", why));
    }

    void lead()
    {
        c10d::TCPStoreOptions o;
        o.port = 0;
        o.isServer = true;
        o.waitWorkers = false;
        auto own = c10::make_intrusive<c10d::TCPStore>("localhost", o);
        std::random_device random;
        std::string number = c10::str(random(), "-", random(), "-", getpid());
        std::string record = c10::str(number, " ", own->getPort(), " ", this_host());
        for (const std::string &address : own_addresses())
            record += " " + address;
        open(url_of("localhost", own->getPort()), left());
        int code = dlcoll_store_set(store_, "dlcoll/number", number.data(), number.size());
        if (code < 0)
            fail(error_text(nullptr, code));
        given_->set("dlcoll/store", record);
        std::string via;
        for (int r = 1; r < size_; r++) {
            std::string host, address;
            try {
                std::istringstream(get(c10::str("dlcoll/", number, "/", r), left())) >> host >>
                    address;
            } catch (const std::exception &e) {
                nobody(r, e.what());
            }
            if (via.empty() && host != this_host())
                via = address;
        }
        server_ = own;
        if (via.empty())
            return;
        dlcoll_store_close(std::exchange(store_, nullptr));
        open(url_of(via, own->getPort()), left());
    }

    // Whether the store there is rank 0's; then it stays open.
    bool is_at(const std::string &address, int port, const std::string &number)
    {
        void *value = nullptr;
        size_t len = 0;
        Millis most = std::min(left(), Millis(1000));
        if (dlcoll_store_open(&store_, url_of(address, port).c_str(), 0, most.count()) < 0)
            return false;
        bool same = dlcoll_store_get(store_, "dlcoll/number", &value, &len, most.count()) == 0 &&
                    std::string(static_cast<char *>(value), len) == number;
        free(value);
        if (!same) {
            dlcoll_store_close(store_);
            store_ = nullptr;
        }
        return same;
    }

    // The record may be of an earlier group: it is read anew each time.
    void follow()
    {
        std::string record;
        do {
            std::string number, host, address;
            int port = 0;
            try {
                record = get("dlcoll/store", left());
            } catch (const std::exception &e) {
                nobody(0, e.what());
            }
            std::istringstream in(record);
            in >> number >> port >> host;
            bool own_host = host == this_host(),
                 found = own_host && is_at("localhost", port, number);
            while (!found && !own_host && in >> address)
                found = is_at(address, port, number);
            if (found) {
                std::string mine = this_host() + " " + address;
                given_->set(c10::str("dlcoll/", number, "/", rank_), mine);
                return;
            }
            std::this_thread::sleep_for(Millis(20));
        } while (left() > Millis(1));
        nobody(0, "it was not found at any address of its host: " + record);
    }

    StorePtr given_, server_;
    int rank_, size_;
    std::chrono::steady_clock::time_point until_;
    dlcoll_store *store_ = nullptr;
};

} // namespace

#endif
