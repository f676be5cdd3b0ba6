/* dlcoll.hpp: libdlcoll for C++17: dlcoll.h with RAII, types by deduction, and exceptions.
 *
 *     dlcoll::comm world;                            // of all workers of the job
 *     std::vector<float> x(1000, 1.0f);
 *     world.all_reduce(x);                           // sum, in place
 *     auto work = world.async().broadcast(x, 0);     // returns at once
 *     work.wait();
 *
 * Nothing is added to what dlcoll.h says of operations, buffers and threads; this header only
 * calls it. Buffers are anything with data() and size(), arrays, or span{pointer, count}. Where a
 * buffer has a part for each rank, sizes are checked: std::invalid_argument. Two buffers of one
 * operation have elements of one type, or it does not compile. A call that fails throws
 * dlcoll::error. */
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
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dlcoll.h"

namespace dlcoll
{

/* ----------------------------------------------------------------------------------------- errors
 */

/* what() is one line for people; detail() says which rank, host, process, and why. */
class error : public std::runtime_error
{
  public:
    explicit error(const dlcoll_error &d) : std::runtime_error(d.text), detail_(d)
    {
    }
    int code() const noexcept
    {
        return detail_.code;
    }
    int rank() const noexcept
    {
        return detail_.rank;
    }
    const dlcoll_error &detail() const noexcept
    {
        return detail_;
    }

  private:
    dlcoll_error detail_;
};

/* Throws unless code >= 0, and returns it. */
inline int check(int code, const dlcoll_comm *comm = nullptr)
{
    if (code >= 0)
        return code;
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(comm, &e);
    if (e.code != code) { /* of a function that leaves no text */
        e = DLCOLL_ERROR_INIT;
        e.code = code;
        std::string(dlcoll_strerror(code)).copy(e.text, sizeof(e.text) - 1);
    }
    throw error(e);
}

/* ------------------------------------------------------------------------------ types, reductions
 */

/* The dlcoll_dtype of a C++ type. For a type of one's own (a half float, say):
 *     template <> struct dlcoll::dtype<half> : dlcoll::dtype_is<DLCOLL_F16> {}; */
template <dlcoll_dtype Value> struct dtype_is {
    static constexpr dlcoll_dtype value = Value;
};

namespace detail
{
template <bool Signed, std::size_t Size> struct integer;
template <> struct integer<true, 1> : dtype_is<DLCOLL_I8> {
};
template <> struct integer<false, 1> : dtype_is<DLCOLL_U8> {
};
template <> struct integer<true, 2> : dtype_is<DLCOLL_I16> {
};
template <> struct integer<false, 2> : dtype_is<DLCOLL_U16> {
};
template <> struct integer<true, 4> : dtype_is<DLCOLL_I32> {
};
template <> struct integer<false, 4> : dtype_is<DLCOLL_U32> {
};
template <> struct integer<true, 8> : dtype_is<DLCOLL_I64> {
};
template <> struct integer<false, 8> : dtype_is<DLCOLL_U64> {
};
} // namespace detail

template <class T, class = void> struct dtype; /* an error that names dtype: see above */
template <class T>
struct dtype<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>>
    : detail::integer<std::is_signed_v<T>, sizeof(T)> {
};
template <> struct dtype<float> : dtype_is<DLCOLL_F32> {
};
template <> struct dtype<double> : dtype_is<DLCOLL_F64> {
};
template <> struct dtype<bool> : dtype_is<DLCOLL_BOOL> {
};
template <> struct dtype<std::byte> : dtype_is<DLCOLL_U8> {
};

template <class T> inline constexpr dlcoll_dtype dtype_v = dtype<std::remove_cv_t<T>>::value;

/* A reduction: a built-in one (DLCOLL_SUM...), or one's own, which ends with the object, or with
 * the last work that has it. */
class reduction
{
  public:
    reduction(dlcoll_op op) noexcept : op_(op)
    {
    }
    reduction(reduction &&) noexcept = default;
    reduction &operator=(reduction &&) = delete;
    dlcoll_op op() const noexcept
    {
        return op_;
    }

    /* Every rank's data times a factor of that rank, added up. */
    template <class T> static reduction premul_sum(T factor)
    {
        reduction r(DLCOLL_SUM);
        check(dlcoll_op_create_premul(&r.op_, &factor, dtype_v<T>));
        r.own(nullptr);
        return r;
    }

    /* fn(a, b) of two elements, associative; flags as dlcoll_op_create_user()'s. It must not
     * throw. For buffers of T only. */
    template <class T, class F> static reduction of(F fn, unsigned flags = 0)
    {
        reduction r(DLCOLL_SUM);
        auto kept = std::make_shared<F>(std::move(fn));
        check(dlcoll_op_create_user(&r.op_, apply<T, F>, kept.get(), flags));
        r.own(std::move(kept));
        return r;
    }

  private:
    template <class> friend class operations;

    void own(std::shared_ptr<void> fn)
    {
        own_ = {nullptr, [op = op_, fn = std::move(fn)](void *) { dlcoll_op_free(op); }};
    }

    template <class T, class F>
    static void apply(void *acc, const void *in, std::size_t count, dlcoll_dtype, void *ctx)
    {
        T *a = static_cast<T *>(acc);
        const T *b = static_cast<const T *>(in);
        for (std::size_t i = 0; i < count; i++)
            a[i] = (*static_cast<F *>(ctx))(a[i], b[i]);
    }

    dlcoll_op op_;
    std::shared_ptr<void> own_;
};

/* ---------------------------------------------------------------------------------------- buffers
 */

/* `count` elements from `data`. */
template <class T> class span
{
  public:
    span(T *data, std::size_t size) : data_(data), size_(size)
    {
    }
    T *data() const noexcept
    {
        return data_;
    }
    std::size_t size() const noexcept
    {
        return size_;
    }

  private:
    T *data_;
    std::size_t size_;
};

/* Of anything with data() and size(), and of arrays. */
template <class B> auto span_of(B &&b)
{
    return span<std::remove_pointer_t<decltype(std::data(b))>>(std::data(b), std::size(b));
}

/* ---------------------------------------------------------------------------------------------
 * work */

/* An operation under way. Its buffers are the library's until it is complete. Until then it is to
 * be kept when its reduction is one's own. */
class work
{
  public:
    work(dlcoll_work *w, const dlcoll_comm *c, std::shared_ptr<void> op = nullptr) noexcept
        : op_(std::move(op)), work_(w), comm_(c)
    {
    }

    void wait()
    {
        check(dlcoll_wait(work_.get()), comm_);
    }
    bool test()
    {
        return check(dlcoll_test(work_.get()), comm_) != DLCOLL_INPROGRESS;
    }
    /* Whether it is complete. */
    bool wait_for(std::chrono::milliseconds limit)
    {
        return check(dlcoll_wait_for(work_.get(), limit.count()), comm_) != DLCOLL_INPROGRESS;
    }
    dlcoll_work *get() const noexcept
    {
        return work_.get();
    }

  private:
    struct free_work {
        void operator()(dlcoll_work *w) const noexcept
        {
            dlcoll_work_free(w);
        }
    };
    std::shared_ptr<void> op_; /* its reduction, if that is one's own */
    std::unique_ptr<dlcoll_work, free_work> work_;
    const dlcoll_comm *comm_;
};

/* ---------------------------------------------------------------------------------------
 * operations
 */

/* What comm, comm.async() and comm.with() have in common. Result: void, or work. */
template <class Result> class operations
{
  public:
    operations(dlcoll_comm *comm, const dlcoll_opts &opts) noexcept : comm_(comm), opts_(opts)
    {
    }

    /* In place, and from one buffer into another. */
    template <class B> Result all_reduce(B &&x, const reduction &r = DLCOLL_SUM) const
    {
        return all_reduce(x, x, r);
    }
    template <class A, class B,
              class = std::enable_if_t<!std::is_convertible_v<B, const reduction &>>>
    Result all_reduce(const A &in, B &&out, const reduction &r = DLCOLL_SUM) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        same_type(s, d);
        same_size(s.size(), d.size());
        return run(r, [&](dlcoll_work **w) {
            return dlcoll_all_reduce(s.data(), d.data(), s.size(), type(d), r.op(), comm_, &opts_,
                                     w);
        });
    }

    template <class B> Result broadcast(B &&x, int root) const
    {
        auto d = span_of(x);
        return run([&](dlcoll_work **w) {
            return dlcoll_broadcast(d.data(), d.data(), d.size(), type(d), root, comm_, &opts_, w);
        });
    }

    /* `out` is used on the root only. */
    template <class A, class B>
    Result reduce(const A &in, B &&out, int root, const reduction &r = DLCOLL_SUM) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        same_type(s, d);
        if (dlcoll_rank(comm_) == root)
            same_size(s.size(), d.size());
        return run(r, [&](dlcoll_work **w) {
            return dlcoll_reduce(s.data(), d.data(), s.size(), type(s), r.op(), root, comm_, &opts_,
                                 w);
        });
    }

    template <class A, class B> Result all_gather(const A &in, B &&out) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        same_type(s, d);
        same_size(s.size() * ranks(), d.size());
        return run([&](dlcoll_work **w) {
            return dlcoll_all_gather(s.data(), d.data(), s.size(), type(d), comm_, &opts_, w);
        });
    }

    template <class A, class B> Result gather(const A &in, B &&out, int root) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        same_type(s, d);
        if (dlcoll_rank(comm_) == root)
            same_size(s.size() * ranks(), d.size());
        return run([&](dlcoll_work **w) {
            return dlcoll_gather(s.data(), d.data(), s.size(), type(s), root, comm_, &opts_, w);
        });
    }

    template <class A, class B> Result scatter(const A &in, B &&out, int root) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        same_type(s, d);
        if (dlcoll_rank(comm_) == root)
            same_size(s.size(), d.size() * ranks());
        return run([&](dlcoll_work **w) {
            return dlcoll_scatter(s.data(), d.data(), d.size(), type(d), root, comm_, &opts_, w);
        });
    }

    template <class A, class B>
    Result reduce_scatter(const A &in, B &&out, const reduction &r = DLCOLL_SUM) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        same_type(s, d);
        same_size(s.size(), d.size() * ranks());
        return run(r, [&](dlcoll_work **w) {
            return dlcoll_reduce_scatter(s.data(), d.data(), d.size(), type(d), r.op(), comm_,
                                         &opts_, w);
        });
    }

    template <class A, class B> Result all_to_all(const A &in, B &&out) const
    {
        auto s = span_of(in);
        auto d = span_of(out);
        same_type(s, d);
        same_size(s.size(), d.size());
        same_size(s.size() % ranks(), 0);
        return run([&](dlcoll_work **w) {
            return dlcoll_all_to_all(s.data(), d.data(), s.size() / ranks(), type(d), comm_, &opts_,
                                     w);
        });
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

    Result barrier() const
    {
        return run([&](dlcoll_work **w) { return dlcoll_barrier(comm_, &opts_, w); });
    }

  protected:
    dlcoll_comm *comm_;
    dlcoll_opts opts_;

  private:
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
        std::unique_ptr<void, decltype(&std::free)> owned(value, std::free);
        return std::string(static_cast<const char *>(value), len);
    }
    std::int64_t add(const std::string &key, std::int64_t delta)
    {
        std::int64_t sum;
        check(dlcoll_store_add(store_.get(), key.c_str(), delta, &sum));
        return sum;
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

/* A communicator. At its end it leaves in good order (dlcoll_finalize(), which waits for the
 * others), unless an exception is on its way or it has failed: then at once. */
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
        return check(dlcoll_rank(comm_));
    }
    int size() const
    {
        return check(dlcoll_size(comm_));
    }
    int local_rank() const
    {
        return check(dlcoll_local_rank(comm_));
    }
    int local_size() const
    {
        return check(dlcoll_local_size(comm_));
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

    /* From any rank, which is returned. */
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

    /* What every rank gives, of any length. */
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
    comm new_group(const std::vector<int> &ranks) const
    {
        dlcoll_comm *group;
        check(dlcoll_comm_new_group(comm_, ranks.data(), static_cast<int>(ranks.size()), &group,
                                    nullptr),
              comm_);
        return comm(group);
    }
    /* After a failure: of those that are alive. */
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
        check(dlcoll_comm_store(comm_, &s), comm_);
        return dlcoll::store(s);
    }

    void abort(const std::string &reason) const
    {
        check(dlcoll_abort(comm_, reason.c_str()), comm_);
    }

    std::string describe() const
    {
        std::string text(dlcoll_describe(comm_, nullptr, 0), '\0');
        dlcoll_describe(comm_, text.data(), text.size() + 1);
        return text;
    }

  private:
    static dlcoll_comm *init(const dlcoll_init_opts *opts)
    {
        dlcoll_comm *c;
        check(dlcoll_init(&c, opts));
        return c;
    }

    int exceptions_; /* on their way when it was made */
};

} // namespace dlcoll

#endif
#endif
