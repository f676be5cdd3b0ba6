// checks.h: what the arguments of an operation must be, before anything is sent. The words of the
// failures are gloo's, since programs and tests look for them.
#ifndef DLCOLL_TORCH_CHECKS_H
#define DLCOLL_TORCH_CHECKS_H

#include "types.h"

namespace
{

// The names of operations stand before what is wrong: "ProcessGroupDlcoll::gather: invalid ...".
template <typename... Words> void require(bool holds, const char *name, const Words &...words)
{
    TORCH_CHECK(holds, "ProcessGroupDlcoll::", name, ": ", words...);
}

void check_tensor(const Tensor &t, const char *name)
{
    require(t.layout() == at::kStrided, name, "unsupported layout: sparse tensors are not ",
            "supported: use to_dense()");
    require(t.device().is_cpu(), name, "unsupported device type: tensors must be on the CPU, not ",
            "on ", t.device(), ": use the backend cpu:dlcoll,cuda:nccl");
}

void check_root(int64_t root, int size, const char *name)
{
    require(root >= 0 && root < size, name, "invalid root rank: ", root);
}

// `what`: as what the tensor is given.
const Tensor &only(const Tensors &ts, const char *name, const char *what = "tensor list")
{
    require(ts.size() == 1, name, "requires a single-element ", what);
    check_tensor(ts[0], name);
    return ts[0];
}

// Each of the list is like the first.
void check_alike(const Tensors &ts, const char *name)
{
    require(!ts.empty(), name, "requires non-empty tensor list");
    for (size_t i = 0; i < ts.size(); i++) {
        require(ts[i].layout() == ts[0].layout(), name, "invalid tensor layout at index ", i);
        require(ts[i].scalar_type() == ts[0].scalar_type(), name, "invalid tensor type at index ",
                i);
        require(ts[i].sizes() == ts[0].sizes(), name, "invalid tensor size at index ", i);
        if (!ts[0].is_sparse())
            check_tensor(ts[i], name);
    }
}

// Each of the list holds what `part` does.
void check_parts(const Tensors &list, const Tensor &part, const char *name, bool equal = true)
{
    for (size_t i = 0; i < list.size(); i++) {
        check_tensor(list[i], name);
        require(list[i].scalar_type() == part.scalar_type(), name, "invalid tensor type at index ",
                i);
        require(!equal || list[i].numel() == part.numel(), name, "invalid tensor size at index ",
                i);
    }
}

// The list that the root of gather or scatter gives: a tensor for each rank. `what`: "input".
void check_list(const std::vector<Tensors> &lists, int size, const Tensor &part, const char *name,
                const char *what, bool equal = true)
{
    require(lists.size() == 1, name, "requires a single-element ", what, " list");
    require(lists[0].size() == size_t(size), name, "Incorrect ", what, " list size ",
            lists[0].size(), ". ", what[0] == 'i' ? "Input" : "Output", " list size should be ",
            size, ", same as size of the process group.");
    check_parts(lists[0], part, name, equal);
}

// Each input with its list of outputs, which has a tensor for each input of each rank.
void check_all_gather(const std::vector<Tensors> &outs, const Tensors &ins, int size)
{
    const char *name = "all_gather";
    require(!ins.empty(), name, "requires non-empty input tensor list");
    require(ins.size() == outs.size(), name,
            "requires input/output tensor lists to have the same length");
    check_alike(ins, name);
    check_tensor(ins[0], name);
    for (size_t i = 0; i < outs.size(); i++) {
        require(outs[i].size() == ins.size() * size_t(size), name,
                "invalid output tensor list at index ", i, " (expected length ",
                ins.size() * size_t(size), ", got ", outs[i].size(), ")");
        check_parts(outs[i], ins[0], name);
    }
}

// For each rank a list of outputs, which are like the inputs.
void check_all_gather_coalesced(const std::vector<Tensors> &outs, const Tensors &ins, int size)
{
    const char *name = "all_gather_coalesced";
    require(!ins.empty(), name, "requires non-empty input tensor list");
    require(outs.size() == size_t(size), name, "output lists should be equal to world size");
    for (size_t r = 0; r < outs.size(); r++) {
        require(outs[r].size() == ins.size(), name, "invalid output size: the list at index ", r,
                " has ", outs[r].size(), " tensors, not ", ins.size());
        for (size_t i = 0; i < ins.size(); i++) {
            check_tensor(ins[i], name);
            check_tensor(outs[r][i], name);
            require(outs[r][i].numel() == ins[i].numel(), name,
                    "invalid size of output tensor at index ", i);
            require(outs[r][i].scalar_type() == ins[i].scalar_type(), name,
                    "invalid tensor type at index ", i);
        }
    }
}

void check_all_reduce_coalesced(const Tensors &ts)
{
    const char *name = "all_reduce_coalesced";
    require(!ts.empty(), name, "requires non-empty tensor list");
    for (size_t i = 0; i < ts.size(); i++) {
        require(ts[i].layout() == ts[0].layout(), name, "invalid tensor layout at index ", i);
        require(ts[i].scalar_type() == ts[0].scalar_type(), name,
                "tensors must all have the same type");
        check_tensor(ts[i], name);
    }
}

// Of the dense tensor `whole`, each rank has a part.
void check_sizes(const Tensor &whole, const Tensor &part, int size, const char *name)
{
    check_tensor(whole, name);
    check_tensor(part, name);
    require(whole.scalar_type() == part.scalar_type(), name, "tensors have different types");
    require(whole.numel() == part.numel() * size, name, "the larger tensor must have ", size,
            " times as many elements as the smaller one");
}

} // namespace

#endif
