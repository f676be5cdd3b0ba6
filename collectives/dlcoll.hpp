/* dlcoll.hpp: libdlcoll for C++17: dlcoll.h with RAII, types by deduction, and exceptions.
 *
 *     dlcoll::comm world;                            // of all workers of the job
 *     std::vector<float> x(1000, 1.0f);
 *     world.all_reduce(x);                           // sum, in place
 *     auto work = world.async().broadcast(x, 0);     // returns at once
 *     work.wait();
 *     world.all_gather_v(x, all, counts);            // counts: std::size_t, one for each rank
 *     world.batch(std::array{dlcoll::p2p_send(x, 1), dlcoll::p2p_recv(y, 2)});
 *     dlcoll::wait_all(works);                       // a list of work
 *
 * Nothing is added to what dlcoll.h says of operations, buffers and threads; this header only
 * calls it. Buffers are anything with data() and size(), arrays, or span{pointer, count}. Where a
 * buffer has a part for each rank, sizes are checked: std::invalid_argument. Two buffers of one
 * operation have elements of one type, or it does not compile. A call that fails throws
 * dlcoll::error. What is not here (registered device memory, NCCL's unique id) is called with
 * comm.get(). */
#ifndef DLCOLL_HPP
#define DLCOLL_HPP

#if __cplusplus < 201703L
#error "dlcoll.hpp needs C++17 (-std=c++17) or later; dlcoll.h takes C++11"
#else

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dlcoll.h"
#include "dlcoll_types.hpp"

namespace dlcoll
{

/* ---------------------------------------------------------------------------------------
 * operations
 */

/* The operations that comm, comm.async() and comm.with() have in common. Result: void, or work. */
template <class Result> class operations
{
  public:
    operations(dlcoll_comm *comm, const dlcoll_opts &opts) noexcept : comm_(comm), opts_(opts)
    {
    }

    /* Two forms: in place, and from one buffer into another. */
    template <class B> Result all_reduce(B &&x, const reduction &r = DLCOLL_SUM) const
    {
        return all_reduce(x, x, r);
    }
    template <class A, class B,
              class = std::enable_if_t<!std::is_convertible_v<B, const reduction &>>>
    Result all_reduce(const A &in, B &&out, const reduction &r = DLCOLL_SUM) const
    {
        return reduce_by(dlcoll_all_reduce, in, out, r);
    }

    template <class B> Result broadcast(B &&x, int root) const
    {
        auto d = span_of(x);
        const dlcoll_opts o = options(x, x);
        return run([&](dlcoll_work **w) {
            return dlcoll_broadcast(d.data(), d.data(), d.size(), type(d), root, comm_, &o, w);
        });
    }

    /* `out` is used on the root only. */
    template <class A, class B>
    Result reduce(const A &in, B &&out, int root, const reduction &r = DLCOLL_SUM) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        if (dlcoll_rank(comm_) == root)
            same_size(s.size(), d.size());
        return run(r, [&](dlcoll_work **w) {
            return dlcoll_reduce(s.data(), d.data(), s.size(), type(s), r.op(), root, comm_, &o, w);
        });
    }

    /* `in` of the ranks up to this one, reduced in their order. */
    template <class A, class B>
    Result scan(const A &in, B &&out, const reduction &r = DLCOLL_SUM) const
    {
        return reduce_by(dlcoll_scan, in, out, r);
    }

    /* `in` of the ranks before this one, reduced in their order; on rank 0 `out` stays as it is. */
    template <class A, class B>
    Result exscan(const A &in, B &&out, const reduction &r = DLCOLL_SUM) const
    {
        return reduce_by(dlcoll_exscan, in, out, r);
    }

    template <class A, class B> Result all_gather(const A &in, B &&out) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        same_size(s.size() * ranks(), d.size());
        return run([&](dlcoll_work **w) {
            return dlcoll_all_gather(s.data(), d.data(), s.size(), type(d), comm_, &o, w);
        });
    }

    template <class A, class B> Result gather(const A &in, B &&out, int root) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        if (dlcoll_rank(comm_) == root)
            same_size(s.size() * ranks(), d.size());
        return run([&](dlcoll_work **w) {
            return dlcoll_gather(s.data(), d.data(), s.size(), type(s), root, comm_, &o, w);
        });
    }

    template <class A, class B> Result scatter(const A &in, B &&out, int root) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        if (dlcoll_rank(comm_) == root)
            same_size(s.size(), d.size() * ranks());
        return run([&](dlcoll_work **w) {
            return dlcoll_scatter(s.data(), d.data(), d.size(), type(d), root, comm_, &o, w);
        });
    }

    template <class A, class B>
    Result reduce_scatter(const A &in, B &&out, const reduction &r = DLCOLL_SUM) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        same_size(s.size(), d.size() * ranks());
        return run(r, [&](dlcoll_work **w) {
            return dlcoll_reduce_scatter(s.data(), d.data(), d.size(), type(d), r.op(), comm_, &o,
                                         w);
        });
    }

    template <class A, class B> Result all_to_all(const A &in, B &&out) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        same_size(s.size(), d.size());
        same_size(s.size() % ranks(), 0);
        return run([&](dlcoll_work **w) {
            return dlcoll_all_to_all(s.data(), d.data(), s.size() / ranks(), type(d), comm_, &o, w);
        });
    }

    /* The _v forms: parts of counts of their own, which lie one after the other, or where displs
     * says. Those of gather_v and scatter_v are the root's; others may give {}. */
    template <class A, class B>
    Result all_gather_v(const A &in, B &&out, counts n, counts displs = {}) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        same_size(s.size(), count_of(n));
        fits(d.size(), n, displs);
        return run([&](dlcoll_work **w) {
            return dlcoll_all_gather_v(s.data(), d.data(), n.data(), displs.data(), type(d), comm_,
                                       &o, w);
        });
    }

    template <class A, class B>
    Result gather_v(const A &in, B &&out, counts n, int root, counts displs = {}) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        if (dlcoll_rank(comm_) == root)
            fits(d.size(), n, displs);
        return run([&](dlcoll_work **w) {
            return dlcoll_gather_v(s.data(), s.size(), d.data(), n.data(), displs.data(), type(d),
                                   root, comm_, &o, w);
        });
    }

    template <class A, class B>
    Result scatter_v(const A &in, B &&out, counts n, int root, counts displs = {}) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        if (dlcoll_rank(comm_) == root)
            fits(s.size(), n, displs);
        return run([&](dlcoll_work **w) {
            return dlcoll_scatter_v(s.data(), n.data(), displs.data(), d.data(), d.size(), type(d),
                                    root, comm_, &o, w);
        });
    }

    template <class A, class B>
    Result reduce_scatter_v(const A &in, B &&out, counts n, const reduction &r = DLCOLL_SUM) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        same_size(d.size(), count_of(n));
        fits(s.size(), n, {});
        return run(r, [&](dlcoll_work **w) {
            return dlcoll_reduce_scatter_v(s.data(), d.data(), n.data(), type(d), r.op(), comm_, &o,
                                           w);
        });
    }

    template <class A, class B>
    Result all_to_all_v(const A &in, counts in_n, B &&out, counts out_n, counts in_displs = {},
                        counts out_displs = {}) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        fits(s.size(), in_n, in_displs);
        fits(d.size(), out_n, out_displs);
        return run([&](dlcoll_work **w) {
            return dlcoll_all_to_all_v(s.data(), in_n.data(), in_displs.data(), d.data(),
                                       out_n.data(), out_displs.data(), type(d), comm_, &o, w);
        });
    }

    /* By a graph of the ranks: block k of `out` comes from sources[k], block k of all_to_all's `in`
     * goes to dests[k]. */
    template <class A, class B>
    Result neighbor_all_gather(const A &in, B &&out, const graph &g) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        same_size(s.size() * g.get()->nsources, d.size());
        return run([&](dlcoll_work **w) {
            return dlcoll_neighbor_all_gather(s.data(), d.data(), s.size(), type(d), g.get(), comm_,
                                              &o, w);
        });
    }

    template <class A, class B>
    Result neighbor_all_to_all(const A &in, B &&out, const graph &g) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        const std::size_t from = g.get()->nsources, to = g.get()->ndests;
        const std::size_t count = from ? d.size() / from : to ? s.size() / to : 0;
        same_size(s.size(), count * to);
        same_size(d.size(), count * from);
        return run([&](dlcoll_work **w) {
            return dlcoll_neighbor_all_to_all(s.data(), d.data(), count, type(d), g.get(), comm_,
                                              &o, w);
        });
    }

    template <class A, class B>
    Result neighbor_all_gather_v(const A &in, B &&out, counts n, const graph &g,
                                 counts displs = {}) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        holds(d.size(), n, displs, g.get()->nsources);
        return run([&](dlcoll_work **w) {
            return dlcoll_neighbor_all_gather_v(s.data(), s.size(), d.data(), n.data(),
                                                displs.data(), type(d), g.get(), comm_, &o, w);
        });
    }

    template <class A, class B>
    Result neighbor_all_to_all_v(const A &in, counts in_n, B &&out, counts out_n, const graph &g,
                                 counts in_displs = {}, counts out_displs = {}) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        holds(s.size(), in_n, in_displs, g.get()->ndests);
        holds(d.size(), out_n, out_displs, g.get()->nsources);
        return run([&](dlcoll_work **w) {
            return dlcoll_neighbor_all_to_all_v(s.data(), in_n.data(), in_displs.data(), d.data(),
                                                out_n.data(), out_displs.data(), type(d), g.get(),
                                                comm_, &o, w);
        });
    }

    /* A type for each block; displacements in bytes. The sizes of the buffers are not checked. */
    Result all_to_all_w(const void *in, counts in_n, counts in_displs,
                        const std::vector<dlcoll_dtype> &in_types, void *out, counts out_n,
                        counts out_displs, const std::vector<dlcoll_dtype> &out_types) const
    {
        same_size(in_n.size(), ranks());
        same_size(out_n.size(), ranks());
        same_size(in_types.size(), ranks());
        same_size(out_types.size(), ranks());
        return run([&](dlcoll_work **w) {
            return dlcoll_all_to_all_w(in, in_n.data(), in_displs.data(), in_types.data(), out,
                                       out_n.data(), out_displs.data(), out_types.data(), comm_,
                                       &opts_, w);
        });
    }

    /* The reductions of a list of in_out, in anything with data() and size(). */
    template <class L>
    Result all_reduce_coalesced(const L &list, const reduction &r = DLCOLL_SUM) const
    {
        auto l = span_of(list);
        using one = std::remove_cv_t<std::remove_pointer_t<decltype(l.data())>>;
        using T = typename one::element;
        static_assert(std::is_same_v<one, in_out<T>> && sizeof(one) == sizeof(dlcoll_span));
        return run(r, [&](dlcoll_work **w) {
            return dlcoll_all_reduce_coalesced(reinterpret_cast<const dlcoll_span *>(l.data()),
                                               l.size(), dtype_v<T>, r.op(), comm_, &opts_, w);
        });
    }

    /* Starts a list of p2p_send() and p2p_recv(); complete when all of them are. */
    template <class L> Result batch(const L &list) const
    {
        const span<const dlcoll_p2p> l(std::data(list), std::size(list));
        return run(
            [&](dlcoll_work **w) { return dlcoll_batch(l.data(), l.size(), comm_, &opts_, w); });
    }

    template <class A> Result send(const A &in, int peer) const
    {
        auto s = span_of(in);
        return run([&](dlcoll_work **w) {
            return dlcoll_send(s.data(), s.size(), type(s), peer, comm_, &opts_, w);
        });
    }

    template <class B> Result recv(B &&out, int peer) const
    {
        auto d = span_of(out);
        return run([&](dlcoll_work **w) {
            return dlcoll_recv(d.data(), d.size(), type(d), peer, comm_, &opts_, w);
        });
    }

    /* At most as many elements as `out` has; from a rank or DLCOLL_ANY_SOURCE. Returns what it has
     * received; or a handle, and *message, which must be there until then, is filled in. */
    template <class B> auto recv_upto(B &&out, int peer, dlcoll_message *message = nullptr) const
    {
        auto d = span_of(out);
        dlcoll_message m = DLCOLL_MESSAGE_INIT;
        if constexpr (std::is_void_v<Result>)
            message = &m;
        const auto call = [&](dlcoll_work **w) {
            return dlcoll_recv_upto(d.data(), d.size(), type(d), peer, message, comm_, &opts_, w);
        };
        if constexpr (std::is_void_v<Result>) {
            run(call);
            return m;
        } else {
            return run(call);
        }
    }
    /* A message that mprobe() or improbe() has found. */
    template <class B> Result mrecv(B &&out, dlcoll_message &message) const
    {
        auto d = span_of(out);
        return run([&](dlcoll_work **w) {
            return dlcoll_mrecv(d.data(), d.size(), type(d), &message, comm_, &opts_, w);
        });
    }
    /* Waits for the message that a receive would get, and describes it. The message is left for a
     * receive; mprobe() keeps it for mrecv(). */
    dlcoll_message probe(int peer) const
    {
        return *find(dlcoll_probe, peer);
    }
    dlcoll_message mprobe(int peer) const
    {
        return *find(dlcoll_mprobe, peer);
    }
    /* probe() and mprobe() that do not wait: nothing if no such message has come. */
    std::optional<dlcoll_message> iprobe(int peer) const
    {
        return find(dlcoll_iprobe, peer);
    }
    std::optional<dlcoll_message> improbe(int peer) const
    {
        return find(dlcoll_improbe, peer);
    }

    Result barrier() const
    {
        return run([&](dlcoll_work **w) { return dlcoll_barrier(comm_, &opts_, w); });
    }

    /* Throws an error of DLCOLL_ETIMEDOUT when ranks are missing, which are then in *missing. */
    void monitored_barrier(std::vector<int> *missing = nullptr) const
    {
        static_assert(std::is_void_v<Result>, "dlcoll: monitored_barrier has no work handle");
        std::size_t n = missing ? ranks() : 0;
        if (missing)
            missing->resize(n);
        const int code =
            dlcoll_monitored_barrier(comm_, missing ? missing->data() : nullptr, &n, &opts_);
        if (missing)
            missing->resize(n);
        check(code, comm_);
    }

  protected:
    dlcoll_comm *comm_;
    dlcoll_opts opts_;

  private:
    std::optional<dlcoll_message> find(decltype(&dlcoll_probe) call, int peer) const
    {
        static_assert(std::is_void_v<Result>, "dlcoll: probes have no work handle");
        dlcoll_message m = DLCOLL_MESSAGE_INIT;
        const int code = call(peer, &m, comm_, &opts_);
        check(code, comm_);
        return code == DLCOLL_INPROGRESS ? std::nullopt : std::optional<dlcoll_message>(m);
    }

    /* Asserts that `in` and `out` have equally many elements. */
    template <class A, class B>
    Result reduce_by(decltype(&dlcoll_all_reduce) call, const A &in, B &out,
                     const reduction &r) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        const dlcoll_opts o = options(in, out);
        same_type(s, d);
        same_size(s.size(), d.size());
        return run(r, [&](dlcoll_work **w) {
            return call(s.data(), d.data(), s.size(), type(d), r.op(), comm_, &o, w);
        });
    }

    template <class T> static constexpr dlcoll_dtype type(const span<T> &)
    {
        return dtype_v<T>;
    }

    /* Counts are of elements, whichever buffer they are taken from. */
    template <class S, class D> static void same_type(const span<S> &, const span<D> &)
    {
        static_assert(dtype_v<S> == dtype_v<D>, "dlcoll: the buffers differ in element type");
    }

    std::size_t ranks() const
    {
        return static_cast<std::size_t>(dlcoll_size(comm_));
    }

    static void same_size(std::size_t a, std::size_t b)
    {
        if (a != b)
            throw std::invalid_argument("dlcoll: buffers of " + std::to_string(a) + " and " +
                                        std::to_string(b) + " elements do not fit each other");
    }

    /* This rank's part. */
    std::size_t count_of(const counts &n) const
    {
        same_size(n.size(), ranks());
        return n.data()[dlcoll_rank(comm_)];
    }

    /* The layouts of buffers that are views. */
    template <class A, class B> dlcoll_opts options(const A &in, const B &out) const
    {
        dlcoll_opts o = opts_;
        if constexpr (detail::is_view<A>)
            o.send_layout = &in.layout();
        if constexpr (detail::is_view<B>)
            o.recv_layout = &out.layout();
        return o;
    }

    /* Whether every part lies in a buffer of so many elements. */
    void fits(std::size_t size, const counts &n, const counts &displs) const
    {
        holds(size, n, displs, ranks());
    }
    static void holds(std::size_t size, const counts &n, const counts &displs, std::size_t parts)
    {
        same_size(n.size(), parts);
        if (displs.data())
            same_size(displs.size(), parts);
        for (std::size_t i = 0, next = 0; i < n.size(); i++) {
            const std::size_t count = n.data()[i], at = displs.data() ? displs.data()[i] : next;
            if (count && (at > size || count > size - at))
                throw std::invalid_argument("dlcoll: the part of rank " + std::to_string(i) +
                                            " is not in the buffer");
            next = at + count;
        }
    }

    template <class F> Result run(F call) const
    {
        return run(DLCOLL_SUM, call);
    }
    template <class F> Result run(const reduction &r, F call) const
    {
        if constexpr (std::is_void_v<Result>) {
            check(call(nullptr), comm_);
        } else {
            dlcoll_work *w = nullptr;
            check(call(&w), comm_);
            return Result(w, comm_, r.own_);
        }
    }
};

/* --------------------------------------------------------------------------------------------
 * store
 */

/* A key-value store; comm.store() is the job's. */
class store
{
  public:
    explicit store(dlcoll_store *borrowed) noexcept : store_(borrowed, close{false})
    {
    }
    /* At "tcp://HOST:PORT"; host_it: serves it, too. */
    explicit store(const char *url, bool host_it = false, std::chrono::milliseconds timeout = {})
        : store_(nullptr, close{true})
    {
        dlcoll_store *s;
        check(dlcoll_store_open(&s, url, host_it, timeout.count()));
        store_.reset(s);
    }

    void set(const std::string &key, const std::string &value)
    {
        check(dlcoll_store_set(store_.get(), key.c_str(), value.data(), value.size()));
    }
    /* Waits until the key is there. */
    std::string get(const std::string &key, std::chrono::milliseconds timeout = {})
    {
        void *value;
        std::size_t len;
        check(dlcoll_store_get(store_.get(), key.c_str(), &value, &len, timeout.count()));
        return take(value, len);
    }
    std::int64_t add(const std::string &key, std::int64_t delta)
    {
        std::int64_t sum;
        check(dlcoll_store_add(store_.get(), key.c_str(), delta, &sum));
        return sum;
    }
    /* Waits until all of the keys exist. */
    void wait(std::initializer_list<const char *> keys, std::chrono::milliseconds timeout = {})
    {
        check(dlcoll_store_wait(store_.get(), keys.begin(), keys.size(), timeout.count()));
    }
    void wait(const std::string &key, std::chrono::milliseconds timeout = {})
    {
        wait({key.c_str()}, timeout);
    }
    void wait(const std::vector<std::string> &keys, std::chrono::milliseconds timeout = {})
    {
        std::vector<const char *> all;
        for (const std::string &key : keys)
            all.push_back(key.c_str());
        check(dlcoll_store_wait(store_.get(), all.data(), all.size(), timeout.count()));
    }
    /* Stores `value` if `expected` is stored now (empty: if nothing is); what is stored then. */
    std::string compare_set(const std::string &key, const std::string &expected,
                            const std::string &value)
    {
        void *now;
        std::size_t len;
        check(dlcoll_store_compare_set(store_.get(), key.c_str(), expected.data(), expected.size(),
                                       value.data(), value.size(), &now, &len));
        return take(now, len);
    }
    /* Whether there was one. */
    bool erase(const std::string &key)
    {
        return check(dlcoll_store_delete(store_.get(), key.c_str())) == 1;
    }
    dlcoll_store *get() const noexcept
    {
        return store_.get();
    }

  private:
    static std::string take(void *value, std::size_t len)
    {
        std::unique_ptr<void, decltype(&std::free)> owned(value, std::free);
        return value ? std::string(static_cast<const char *>(value), len) : std::string();
    }

    struct close {
        bool own;
        void operator()(dlcoll_store *s) const noexcept
        {
            if (own)
                dlcoll_store_close(s);
        }
    };
    std::unique_ptr<dlcoll_store, close> store_;
};

/* ---------------------------------------------------------------------------------------------
 * comm
 */

/* Memory that all ranks of the node can reach: the fastest buffers; other memory where there is
 * none. Zeroed. Ends before its communicator. */
template <class T> class buffer
{
    static_assert(std::is_trivially_copyable_v<T>);

  public:
    buffer(dlcoll_comm *comm, std::size_t size) : data_(nullptr, give_back{comm}), size_(size)
    {
        if (size > SIZE_MAX / sizeof(T))
            throw std::bad_array_new_length();
        data_.reset(static_cast<T *>(dlcoll_mem_alloc(comm, size * sizeof(T))));
        if (data_)
            return;
        data_.get_deleter().comm = nullptr;
        data_.reset(static_cast<T *>(::operator new(size * sizeof(T), give_back::page)));
        std::memset(static_cast<void *>(data_.get()), 0, size * sizeof(T));
    }
    T *data() noexcept
    {
        return data_.get();
    }
    const T *data() const noexcept
    {
        return data_.get();
    }
    std::size_t size() const noexcept
    {
        return size_;
    }
    T *begin() noexcept
    {
        return data();
    }
    T *end() noexcept
    {
        return data() + size_;
    }
    T &operator[](std::size_t i) noexcept
    {
        return data()[i];
    }
    const T &operator[](std::size_t i) const noexcept
    {
        return data()[i];
    }

  private:
    struct give_back {
        static constexpr std::align_val_t page{4096};
        dlcoll_comm *comm; /* NULL: it is not of the communicator's */
        void operator()(T *p) const noexcept
        {
            if (comm)
                dlcoll_mem_free(comm, p);
            else
                ::operator delete(static_cast<void *>(p), page);
        }
    };
    std::unique_ptr<T, give_back> data_;
    std::size_t size_;
};

class comm;

/* The result of one of comm's functions with _async. Its destructor waits for completion. */
template <class T> class future
{
    using raw = std::conditional_t<std::is_same_v<T, comm>, dlcoll_comm *, dlcoll_bytes *>;

  public:
    future(work w, std::unique_ptr<raw> made, int ranks) noexcept
        : made_(std::move(made)), work_(std::move(w)), ranks_(ranks)
    {
    }
    future(future &&) noexcept = default;
    future &operator=(future &&) = delete;
    ~future()
    {
        if (!made_)
            return;
        dlcoll_wait(work_.get());
        if constexpr (std::is_same_v<T, comm>)
            dlcoll_destroy(*made_);
        else
            dlcoll_bytes_free(*made_);
    }
    bool test()
    {
        return work_.test();
    }
    bool wait_for(std::chrono::milliseconds limit)
    {
        return work_.wait_for(limit);
    }
    /* Waits for it; once. */
    T get()
    {
        work_.wait();
        const raw made = std::exchange(*made_, nullptr);
        if constexpr (std::is_same_v<T, comm>) {
            return T(made);
        } else {
            std::unique_ptr<dlcoll_bytes, decltype(&dlcoll_bytes_free)> owned(made,
                                                                              dlcoll_bytes_free);
            T result;
            for (int i = 0; i < ranks_; i++)
                result.emplace_back(static_cast<const char *>(made[i].data), made[i].len);
            return result;
        }
    }

  private:
    std::unique_ptr<raw> made_;
    work work_;
    int ranks_;
};

/* A communicator, which threads may share with DLCOLL_THREAD_MULTIPLE in opts.flags. At its end it
 * leaves in good order (dlcoll_finalize(), which waits for the others), unless an exception is on
 * its way or it has failed: then at once. */
class comm : public operations<void>
{
  public:
    comm() : comm(init(nullptr))
    {
    }
    explicit comm(const dlcoll_init_opts &opts) : comm(init(&opts))
    {
    }
    explicit comm(dlcoll_comm *owned) noexcept
        : operations<void>(owned, DLCOLL_OPTS_INIT), exceptions_(std::uncaught_exceptions())
    {
    }
    comm(comm &&other) noexcept
        : operations<void>(std::exchange(other.comm_, nullptr), other.opts_),
          exceptions_(other.exceptions_)
    {
    }
    comm &operator=(comm &&other) noexcept
    {
        std::swap(comm_, other.comm_);
        std::swap(exceptions_, other.exceptions_);
        return *this;
    }
    ~comm()
    {
        if (comm_ && std::uncaught_exceptions() <= exceptions_)
            dlcoll_finalize(comm_);
        dlcoll_destroy(comm_);
    }

    int rank() const
    {
        return check_code(dlcoll_rank(comm_));
    }
    int size() const
    {
        return check_code(dlcoll_size(comm_));
    }
    int local_rank() const
    {
        return check_code(dlcoll_local_rank(comm_));
    }
    int local_size() const
    {
        return check_code(dlcoll_local_size(comm_));
    }
    int world_rank(int rank) const
    {
        return check_code(dlcoll_world_rank(comm_, rank));
    }
    /* Nodes, numbered by their lowest rank; the node of a rank, and the ranks of a node. */
    int node_count() const
    {
        return check_code(dlcoll_node_count(comm_));
    }
    int node_of(int rank) const
    {
        return check_code(dlcoll_node_of(comm_, rank));
    }
    std::vector<int> node_ranks(int node) const
    {
        std::vector<int> ranks(
            static_cast<std::size_t>(check_code(dlcoll_node_ranks(comm_, node, nullptr, 0))));
        dlcoll_node_ranks(comm_, node, ranks.data(), static_cast<int>(ranks.size()));
        return ranks;
    }
    /* The number of each rank's domain, from 0 by the lowest rank. Every rank calls it. */
    std::vector<int> domains(dlcoll_domain domain) const
    {
        std::vector<int> of(static_cast<std::size_t>(size()));
        check(dlcoll_domains(comm_, domain, of.data()), comm_);
        return of;
    }
    /* A rank's host, and its process id there (0: not known yet). */
    std::pair<std::string, int> rank_host(int rank) const
    {
        char host[256];
        int pid = 0;
        check_code(dlcoll_rank_host(comm_, rank, host, sizeof(host), &pid));
        return {host, pid};
    }
    dlcoll_comm *get() const noexcept
    {
        return comm_;
    }

    /* Operations that return a work handle at once, and ones with a timeout or a tag. */
    operations<work> async(const dlcoll_opts &opts = DLCOLL_OPTS_INIT) const noexcept
    {
        return {comm_, opts};
    }
    /* Operations that only return a handle, for work::start(). */
    operations<work> persistent(dlcoll_opts opts = DLCOLL_OPTS_INIT) const noexcept
    {
        opts.flags |= DLCOLL_PERSISTENT;
        return {comm_, opts};
    }
    operations<void> with(const dlcoll_opts &opts) const noexcept
    {
        return {comm_, opts};
    }
    operations<void> with(std::chrono::milliseconds timeout) const noexcept
    {
        dlcoll_opts opts = DLCOLL_OPTS_INIT;
        opts.timeout_ms = timeout.count();
        return with(opts);
    }

    /* Operations on messages with a tag, or DLCOLL_ANY_TAG. */
    operations<void> tagged(int tag) const noexcept
    {
        dlcoll_opts opts = DLCOLL_OPTS_INIT;
        opts.tag = tag;
        return with(opts);
    }
    /* Sends that end when the message has been received. */
    operations<void> synchronous(dlcoll_opts opts = DLCOLL_OPTS_INIT) const noexcept
    {
        opts.flags |= DLCOLL_SYNCHRONOUS;
        return with(opts);
    }

    /* Receives from any rank, and returns the sender's rank. */
    template <class B> int recv_any(B &&out) const
    {
        int peer = -1;
        auto d = span_of(out);
        check(dlcoll_recv_any(d.data(), d.size(),
                              dtype_v<std::remove_pointer_t<decltype(d.data())>>, &peer, comm_,
                              &opts_, nullptr),
              comm_);
        return peer;
    }

    /* Returns the bytes that every rank gives, of any length. */
    std::vector<std::string> exchange(const std::string &mine) const
    {
        dlcoll_bytes *all;
        check(dlcoll_exchange_bytes(mine.data(), mine.size(), &all, comm_, &opts_), comm_);
        std::unique_ptr<dlcoll_bytes, decltype(&dlcoll_bytes_free)> owned(all, dlcoll_bytes_free);
        std::vector<std::string> result;
        for (int i = 0; i < size(); i++)
            result.emplace_back(static_cast<const char *>(all[i].data), all[i].len);
        return result;
    }

    /* Groups. The colour DLCOLL_NO_COLOR, and ranks that are not in the list: a comm without
     * anything in it, for which operator bool is false. */
    comm split(int color, int key = 0) const
    {
        dlcoll_comm *group;
        check(dlcoll_comm_split(comm_, color, key, &group, nullptr), comm_);
        return comm(group);
    }
    /* The group of ranks that are in the same domain. */
    comm split_by(dlcoll_domain domain, int key = 0) const
    {
        dlcoll_comm *group;
        check(dlcoll_comm_split_by(comm_, domain, key, &group, nullptr), comm_);
        return comm(group);
    }
    comm new_group(const std::vector<int> &ranks) const
    {
        dlcoll_comm *group;
        check(dlcoll_comm_new_group(comm_, ranks.data(), static_cast<int>(ranks.size()), &group,
                                    nullptr),
              comm_);
        return comm(group);
    }
    /* A group of all ranks. */
    comm dup() const
    {
        dlcoll_comm *group;
        check(dlcoll_comm_dup(comm_, &group, nullptr, nullptr), comm_);
        return comm(group);
    }
    /* Groups by handle. */
    future<comm> split_async(int color, int key = 0) const
    {
        return begin<comm, dlcoll_comm *>([&](dlcoll_comm **group, dlcoll_work **w) {
            return dlcoll_comm_split_async(comm_, color, key, group, nullptr, w);
        });
    }
    future<comm> new_group_async(const std::vector<int> &ranks) const
    {
        return begin<comm, dlcoll_comm *>([&](dlcoll_comm **group, dlcoll_work **w) {
            return dlcoll_comm_new_group_async(comm_, ranks.data(), static_cast<int>(ranks.size()),
                                               group, nullptr, w);
        });
    }
    future<comm> dup_async() const
    {
        return begin<comm, dlcoll_comm *>([&](dlcoll_comm **group, dlcoll_work **w) {
            return dlcoll_comm_dup(comm_, group, nullptr, w);
        });
    }
    /* `mine` must be there until the handle is complete. No call may follow finalize_async(). */
    future<std::vector<std::string>> exchange_async(const std::string &mine) const
    {
        return begin<std::vector<std::string>, dlcoll_bytes *>(
            [&](dlcoll_bytes **all, dlcoll_work **w) {
                return dlcoll_exchange_bytes_async(mine.data(), mine.size(), all, comm_, &opts_, w);
            });
    }
    work finalize_async() const
    {
        dlcoll_work *w;
        check(dlcoll_finalize_async(comm_, &opts_, &w), comm_);
        return work(w, comm_);
    }
    /* To be called after a failure: the group of the ranks that are alive. */
    comm shrink() const
    {
        dlcoll_comm *group;
        check(dlcoll_comm_shrink(comm_, &group, nullptr)); /* the thread has the reason */
        return comm(group);
    }
    explicit operator bool() const noexcept
    {
        return comm_ != nullptr;
    }

    template <class T> dlcoll::buffer<T> buffer(std::size_t size) const
    {
        return {comm_, size};
    }

    dlcoll::store store() const
    {
        dlcoll_store *s;
        check(dlcoll_comm_store(comm_, &s)); /* the thread has the reason */
        return dlcoll::store(s);
    }

    void abort(const std::string &reason) const
    {
        check(dlcoll_abort(comm_, reason.c_str()), comm_);
    }

    /* The last operations of a rank of the world on this node (-1: this one), the newest first. */
    std::vector<dlcoll_record> recent(int rank = -1, std::size_t max = 16) const
    {
        std::vector<dlcoll_record> all(max);
        all.resize(static_cast<std::size_t>(
            check_code(dlcoll_recent(comm_, rank, all.data(), static_cast<int>(max)))));
        return all;
    }

    std::string describe() const
    {
        std::string text(dlcoll_describe(comm_, nullptr, 0), '\0');
        dlcoll_describe(comm_, text.data(), text.size() + 1);
        return text;
    }

  private:
    template <class T, class Raw, class F> future<T> begin(F call) const
    {
        auto raw = std::make_unique<Raw>(nullptr);
        dlcoll_work *w;
        check(call(raw.get(), &w), comm_);
        return future<T>(work(w, comm_), std::move(raw), size());
    }

    static dlcoll_comm *init(const dlcoll_init_opts *opts)
    {
        dlcoll_comm *c;
        check(dlcoll_init(&c, opts));
        return c;
    }

    int exceptions_; /* on their way when it was made */
};

inline const char *version() noexcept
{
    return dlcoll_version();
}

} // namespace dlcoll

#endif
#endif
