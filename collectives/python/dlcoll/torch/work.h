// work.h: an operation as the program sees it.
#ifndef DLCOLL_TORCH_WORK_H
#define DLCOLL_TORCH_WORK_H

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "operation.h"

namespace
{

class DlcollWork final : public c10d::Work
{
  public:
    // `title`: of the profiler's event; NULL: no profiler is active.
    DlcollWork(int rank, c10d::OpType type, const char *title, const std::optional<Tensors> &inputs,
               const std::shared_ptr<Comm> &comm, Tensors outputs, uint64_t seq, Millis timeout)
        : Work(rank, type, title, inputs), comm_(comm), op(std::make_shared<Operation>(comm)),
          seq_(seq), timeout_(timeout)
    {
        op->outputs = std::move(outputs);
        op->on_end = std::move(recordFunctionEndCallback_);
        recordFunctionEndCallback_ = nullptr;
    }

    ~DlcollWork() override
    {
        op->orphan();
    }

    bool isCompleted() override
    {
        if (!op->advance(Millis(0)))
            return false;
        op->settle(false);
        return true;
    }

    bool isSuccess() const override
    {
        return op->has_ended() && !op->error();
    }

    std::exception_ptr exception() const override
    {
        return op->error();
    }

    // timeout 0: the operation's own.
    bool wait(Millis timeout = kNoTimeout) override
    {
        Millis most = timeout == kNoTimeout ? Millis(-1) : timeout;
        if (!op->advance(most))
            fail(c10::str("the operation did not complete within ", timeout.count(), " ms"));
        op->settle(true, most);
        if (auto error = op->error())
            std::rethrow_exception(error);
        return true;
    }

    void synchronize() override
    {
        wait(kNoTimeout);
    }

    void abort() override
    {
        if (auto comm = comm_.lock())
            dlcoll_abort(comm->comm, kAborted);
    }

    Tensors result() override
    {
        return op->outputs;
    }
    int sourceRank() const override
    {
        return isSuccess() ? op->peer : -1;
    }
    uint64_t getSequencenumber() const override
    {
        return seq_;
    }
    Millis getTimeout() const override
    {
        return timeout_;
    }

    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        std::lock_guard<std::mutex> hold(future_lock_);
        if (!future_) {
            c10::TypePtr list = c10::ListType::create(c10::TensorType::get());
            auto made = c10::make_intrusive<c10::ivalue::Future>(
                op->lists.empty() ? list : c10::ListType::create(list));
            op->promise(made);
            future_ = made;
        }
        return future_;
    }

  private:
    std::weak_ptr<Comm> comm_; // a work that the program keeps does not keep its group

  public:
    const std::shared_ptr<Operation> op;

  private:
    uint64_t seq_;
    Millis timeout_;
    std::mutex future_lock_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

} // namespace

#endif
