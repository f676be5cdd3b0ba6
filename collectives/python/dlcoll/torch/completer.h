// completer.h: the threads that end operations for which no thread waits, and run the callbacks of
// futures.
//
// A callback may wait: for another operation, for its future, for another thread. So whoever takes
// an item sees to it first that another thread is ready for the next one.
#ifndef DLCOLL_TORCH_COMPLETER_H
#define DLCOLL_TORCH_COMPLETER_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include <pthread.h>
#include <signal.h>

namespace
{

// How often this process and its parents have been forked: what a fork()'s child has inherited is
// its parent's, and locks among it may be held for ever.
std::atomic<unsigned> g_forks{0};

// Something for a thread of the completer.
class Item
{
  public:
    virtual ~Item() = default;
    virtual void complete() noexcept = 0;

  private:
    friend class Completer;
    std::shared_ptr<Item> next_; // in the queue
    bool queued_ = false;
};

class Completer
{
  public:
    // This process's. It is never freed, because its threads may outlive main().
    static Completer &get()
    {
        Completer *c = g_completer.load(), *made;
        if (c)
            return *c;
        made = new Completer;
        if (g_completer.compare_exchange_strong(c, made))
            return *made;
        delete made;
        return *c;
    }

    // In a fork()'s child, which has none of the threads.
    static void forget() noexcept
    {
        g_completer.store(nullptr);
    }

    // Whether this thread is one of these.
    static bool inside() noexcept
    {
        return t_inside;
    }

    // Makes the first thread, if there is none. std::system_error.
    void begin()
    {
        std::unique_lock<std::mutex> hold(lock_);
        if (threads_ == 0)
            add_thread(hold);
    }

    // Any thread; also while libdlcoll holds its locks. An item that stands in the queue already
    // stays where it is.
    void push(std::shared_ptr<Item> item) noexcept
    {
        std::lock_guard<std::mutex> hold(lock_);
        if (item->queued_)
            return;
        item->queued_ = true;
        Item *last = item.get();
        (last_ ? last_->next_ : first_) = std::move(item);
        last_ = last;
        wake_.notify_one();
    }

    // Waits until nothing is queued or runs, at most so long.
    void drain(std::chrono::milliseconds timeout)
    {
        std::unique_lock<std::mutex> hold(lock_);
        quiet_.wait_for(hold, timeout, [this] { return !first_ && running_ == 0; });
    }

  private:
    static constexpr int kIdle = 2; // so many threads stay when there is nothing to do

    void add_thread(std::unique_lock<std::mutex> &hold)
    {
        sigset_t all, before;
        sigfillset(&all);
        threads_++;
        starting_++;
        hold.unlock();
        pthread_sigmask(SIG_SETMASK, &all, &before); // signals are the program's threads'
        try {
            std::thread([this] { run(); }).detach();
        } catch (...) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            hold.lock();
            threads_--;
            starting_--;
            throw;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        hold.lock();
    }

    std::shared_ptr<Item> take()
    {
        auto item = std::move(first_);
        first_ = std::move(item->next_);
        if (!first_)
            last_ = nullptr;
        item->queued_ = false;
        return item;
    }

    void run()
    {
        t_inside = true;
        std::unique_lock<std::mutex> hold(lock_);
        starting_--;
        for (;;) {
            if (first_) {
                running_++;
                auto item = take();
                try {
                    if (idle_ + starting_ == 0)
                        add_thread(hold);
                } catch (...) { // this one has to do
                }
                hold.unlock();
                item->complete();
                item.reset();
                hold.lock();
                if (--running_ == 0 && !first_)
                    quiet_.notify_all();
            } else if (idle_ < kIdle) {
                idle_++;
                wake_.wait(hold);
                idle_--;
            } else {
                threads_--;
                return;
            }
        }
    }

    static inline std::atomic<Completer *> g_completer{nullptr};
    static inline thread_local bool t_inside = false;

    std::mutex lock_; // of all of these
    std::condition_variable wake_, quiet_;
    std::shared_ptr<Item> first_;
    Item *last_ = nullptr;
    int threads_ = 0, starting_ = 0, idle_ = 0, running_ = 0;
};

} // namespace

#endif
