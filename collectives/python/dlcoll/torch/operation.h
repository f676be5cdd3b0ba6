// operation.h: communicators and the operations under way on them.
//
// libdlcoll says when an operation is complete (dlcoll_notify()). Somebody then ends it: copies
// what it has received to where it belongs, lets its tensors go, and fills its future. That is
//
//   the thread that waits for it        it carries the operation on in libdlcoll meanwhile
//   a thread of the completer           if it has a future, or the program has dropped its work
//   whoever asks for it or drops it     otherwise
//
// Failures on any of these ways are the operation's: they are told by its work and its future.
#ifndef DLCOLL_TORCH_OPERATION_H
#define DLCOLL_TORCH_OPERATION_H

#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <functional>
#include <optional>

#include "completer.h"
#include "types.h"

namespace
{

class Operation;

constexpr const char *kAborted = "aborted by the program"; // as the text of a failure

// Communicators that are being closed, and whether the process ends.
struct Ends {
    std::mutex lock;
    std::condition_variable changed;
    int closing = 0;                // communicators that wait for other ranks
    int launched = 0;               // the launcher's world, which is there once, and its groups
    std::atomic<bool> exits{false}; // nothing is closed or freed any more
};

// Never freed: see Completer.
Ends &ends()
{
    static Ends &e = *new Ends;
    return e;
}

// A communicator of libdlcoll, shared by the group and by the operations on it.
struct Comm {
    dlcoll_comm *comm = nullptr;
    bool is_launched = false; // counted
    const unsigned forks = g_forks;
    std::atomic<bool> closed{false};

    ~Comm();
    bool is_forked() const
    {
        return forks != g_forks;
    }

  private:
    friend class Operation;
    friend void close(const std::shared_ptr<Comm> &comm);
    std::mutex lock_;            // of the list
    Operation *first_ = nullptr; // operations that have begun and have not ended
};

Comm::~Comm()
{
    Ends &e = ends();
    if (e.exits && !is_forked())
        return;
    if (comm)
        dlcoll_destroy(comm);
    if (!is_launched || is_forked())
        return;
    std::lock_guard<std::mutex> hold(e.lock);
    e.launched--;
    e.changed.notify_all();
}

class Operation final : public Item, public std::enable_shared_from_this<Operation>
{
  public:
    using Future = c10::intrusive_ptr<c10::ivalue::Future>;

    explicit Operation(std::shared_ptr<Comm> comm) : comm_(std::move(comm)), forks_(comm_->forks)
    {
    }

    // To be set before it begins.
    dlcoll_work *handle = nullptr;
    int peer = -1;                               // of a receive from any rank
    Tensors kept;                                // used until it is complete
    std::vector<std::pair<Tensor, Tensor>> back; // what is copied, to where and from where
    std::shared_ptr<void> reduction;             // likewise used
    Tensors outputs;                             // the future's value,
    std::vector<Tensors> lists;                  // or these, if there are any
    std::function<void()> on_end;

    // Without a handle: in the calling thread. Throws what has gone wrong.
    void run(int code)
    {
        end(code);
        if (error_)
            std::rethrow_exception(error_);
    }

    // With one: `notice` is made before the call that makes the handle, so that nothing can fail
    // after it.
    using Notice = std::unique_ptr<std::shared_ptr<Operation>>;
    Notice make_notice()
    {
        return std::make_unique<std::shared_ptr<Operation>>(shared_from_this());
    }
    void begin(Notice notice) noexcept
    {
        {
            std::lock_guard<std::mutex> hold(comm_->lock_);
            next_ = comm_->first_;
            if (next_)
                next_->before_ = &next_;
            before_ = &comm_->first_;
            comm_->first_ = this;
        }
        dlcoll_notify(handle, on_notice, notice.release());
    }

    bool has_ended() const noexcept
    {
        return ended_.load(std::memory_order_acquire);
    }

    std::exception_ptr error() const noexcept
    {
        return has_ended() ? error_ : nullptr;
    }

    // Waits at most `timeout` (negative: without limit). Whether it has ended.
    bool advance(Millis timeout)
    {
        std::unique_lock<std::timed_mutex> turn(waiting_, std::defer_lock);
        auto until = std::chrono::steady_clock::now() + timeout;
        if (has_ended())
            return true;
        if (timeout.count() < 0)
            turn.lock();
        else if (!turn.try_lock_until(until))
            return has_ended();
        if (has_ended())
            return true;
        set_awaited(true);
        int code = dlcoll_wait_for(handle, timeout.count() < 0 ? -1 : timeout.count());
        if (set_awaited(false) && code == DLCOLL_INPROGRESS)
            code = dlcoll_test(handle);
        if (code == DLCOLL_INPROGRESS)
            return false;
        end(code);
        return true;
    }

    // After its end: lets its callbacks run, if they have not, and waits for them, as gloo does;
    // but not in a callback. false: only the first.
    void settle(bool waits, Millis timeout = Millis(-1))
    {
        std::unique_lock<std::mutex> hold(lock_);
        if (!future_ || filled_)
            return;
        if (!taken_) {
            hold.unlock();
            Completer::get().push(shared_from_this());
            hold.lock();
        }
        auto is_filled = [this] { return filled_; };
        if (!waits || Completer::inside())
            return;
        if (timeout.count() < 0)
            changed_.wait(hold, is_filled);
        else
            changed_.wait_for(hold, timeout, is_filled);
    }

    // The future to be filled at its end; or it has ended, and the future is filled.
    void promise(const Future &future)
    {
        bool ended, done;
        Completer::get().begin();
        {
            std::lock_guard<std::mutex> hold(lock_);
            ended = ended_;
            done = done_ && !awaited_;
            if (!ended) {
                future_ = future;
                state_.emplace();
            }
        }
        if (ended)
            fill(future);
        else if (done)
            Completer::get().push(shared_from_this());
    }

    // The program has dropped the work: nobody will ask.
    void orphan() noexcept
    {
        if (!handle || forks_ != g_forks || has_ended())
            return;
        bool done;
        {
            std::lock_guard<std::mutex> hold(lock_);
            orphan_ = true;
            done = done_ && !awaited_;
        }
        try {
            if (done && advance(Millis(0)))
                settle(false);
            else
                Completer::get().begin();
        } catch (...) { // no thread, no memory: the next one that there is ends it
        }
    }

    // In a thread of the completer.
    void complete() noexcept override
    {
        try {
            advance(Millis(-1));
        } catch (...) {
            return; // a lock is broken
        }
        Future future;
        std::optional<at::ThreadLocalState> state;
        {
            std::lock_guard<std::mutex> hold(lock_);
            if (!future_ || taken_)
                return;
            taken_ = true;
            future = future_;
            std::swap(state, state_);
        }
        try {
            at::ThreadLocalStateGuard as_at_the_call(*state);
            fill(future);
        } catch (const std::exception &e) {
            TORCH_WARN("dlcoll: a callback of a future has failed: ", e.what());
        } catch (...) {
            TORCH_WARN("dlcoll: a callback of a future has failed");
        }
        std::lock_guard<std::mutex> hold(lock_);
        filled_ = true;
        future_.reset();
        changed_.notify_all();
    }

  private:
    static void on_notice(void *arg)
    {
        Notice notice(static_cast<std::shared_ptr<Operation> *>(arg));
        Operation &op = **notice;
        bool wanted;
        {
            std::lock_guard<std::mutex> hold(op.lock_);
            op.done_ = true;
            wanted = !op.awaited_ && (op.future_ || op.orphan_);
        }
        if (wanted)
            Completer::get().push(std::move(*notice));
    }

    // Whether it is complete: if a thread waits for it, nobody else has been told.
    bool set_awaited(bool awaited)
    {
        std::lock_guard<std::mutex> hold(lock_);
        awaited_ = awaited;
        return done_;
    }

    void fill(const Future &future)
    {
        if (error_)
            future->setError(error_);
        else
            future->markCompleted(lists.empty() ? c10::IValue(outputs) : c10::IValue(lists));
    }

    std::exception_ptr result(int code) noexcept
    {
        try {
            if (code < 0)
                return std::make_exception_ptr(
                    c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                          "dlcoll: " + error_text(comm_->comm, code)));
            at::NoGradGuard no_grad;
            for (auto &pair : back)
                pair.first.copy_(pair.second);
            return nullptr;
        } catch (...) {
            return std::current_exception();
        }
    }

    // Leaves the communicator's list. What the operation has used goes at the end of this function.
    void end(int code) noexcept
    {
        std::exception_ptr error = result(code);
        try {
            if (on_end)
                on_end();
        } catch (...) { // the profiler's
        }
        auto comm = std::move(comm_);
        auto used = std::make_tuple(std::move(kept), std::move(back), std::move(reduction),
                                    std::move(on_end));
        if (handle) {
            dlcoll_work_free(handle);
            std::lock_guard<std::mutex> hold(comm->lock_);
            *before_ = next_;
            if (next_)
                next_->before_ = before_;
        }
        std::lock_guard<std::mutex> hold(lock_);
        error_ = std::move(error);
        ended_.store(true, std::memory_order_release);
    }

    friend void close(const std::shared_ptr<Comm> &comm);
    std::shared_ptr<Comm> comm_; // until its end
    Operation *next_ = nullptr, **before_ = nullptr;
    const unsigned forks_;
    std::timed_mutex waiting_; // one thread at a time waits for the handle
    std::atomic<bool> ended_{false};
    std::exception_ptr error_; // written before ended_
    std::mutex lock_;          // of what follows
    std::condition_variable changed_;
    bool done_ = false;                         // libdlcoll has said that it is complete
    bool awaited_ = false;                      // a thread is in dlcoll_wait_for()
    bool orphan_ = false;                       // there is no work
    Future future_;                             // until it is filled
    bool taken_ = false;                        // a thread fills it
    bool filled_ = false;                       // its callbacks have run
    std::optional<at::ThreadLocalState> state_; // for the callbacks
};

constexpr Millis kEndOfGroup{2000}; // a communicator waits so long for its other ranks

// Leaves the communicator: nothing can be called on it any more, what is under way goes on, and
// then it waits a moment for the other ranks, so that none sees this one leave in the middle of an
// operation. All this goes on behind the program's back; finish_all() waits for it.
void close(const std::shared_ptr<Comm> &comm)
{
    Ends &e = ends();
    if (comm->is_forked() || e.exits || comm->closed.exchange(true))
        return;
    std::vector<std::shared_ptr<Operation>> rest;
    {
        std::lock_guard<std::mutex> hold(comm->lock_);
        for (Operation *op = comm->first_; op; op = op->next_) {
            if (auto it = op->weak_from_this().lock())
                rest.push_back(std::move(it));
        }
    }
    for (auto &op : rest)
        op->orphan();
    auto last = std::make_shared<Operation>(comm);
    auto notice = last->make_notice();
    last->on_end = [] {
        std::lock_guard<std::mutex> hold(ends().lock);
        ends().closing--;
        ends().changed.notify_all();
    };
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    o.timeout_ms = kEndOfGroup.count();
    if (dlcoll_finalize_async(comm->comm, &o, &last->handle) < 0)
        return; // it has failed, or sends are under way: it goes with the last of them
    {
        std::lock_guard<std::mutex> hold(e.lock);
        e.closing++;
    }
    last->begin(std::move(notice));
    last->orphan();
}

// The program ends: waits for what close() has left to be done, and for callbacks that run.
void finish_all()
{
    Ends &e = ends();
    {
        std::unique_lock<std::mutex> hold(e.lock);
        e.changed.wait_for(hold, kEndOfGroup + Millis(500), [&e] { return e.closing == 0; });
    }
    Completer::get().drain(Millis(500));
    e.exits = true;
}

// Before the launcher's world is made anew: waits until nothing is left of an earlier one.
void await_launched(Millis timeout)
{
    Ends &e = ends();
    std::unique_lock<std::mutex> hold(e.lock);
    e.changed.wait_for(hold, timeout, [&e] { return e.launched == 0; });
}

// The communicator is the launcher's world, or a group of it.
void count_launched(Comm &comm)
{
    std::lock_guard<std::mutex> hold(ends().lock);
    ends().launched++;
    comm.is_launched = true;
}

} // namespace

#endif
