// place.h: where the data of one operation lies, and what must be copied back when it is complete.
//
// Tensors that are contiguous are used where they are. Any other tensor goes through a contiguous
// copy, and so does one whose memory another tensor of the operation overlaps.
#ifndef DLCOLL_TORCH_PLACE_H
#define DLCOLL_TORCH_PLACE_H

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "types.h"

namespace
{

// The same memory as a tensor to be written to later, by any thread: not tied to the inference mode
// of this call, and without the elements that share their memory with another one.
Tensor writable(const Tensor &t)
{
    std::vector<int64_t> sizes = t.sizes().vec();
    for (size_t i = 0; i < sizes.size(); i++) {
        if (t.strides()[i] == 0 && sizes[i] > 1)
            sizes[i] = 1;
    }
    Tensor same = at::from_blob(t.data_ptr(), sizes, t.strides(), t.options());
    if (t.is_conj())
        same = same.conj();
    return t.is_neg() ? at::_neg_view(same) : same;
}

// What of a contiguous copy of `t` belongs there.
Tensor part_for(const Tensor &same, Tensor copy)
{
    for (int64_t i = 0; i < copy.dim(); i++)
        copy = copy.narrow(i, 0, same.size(i));
    return copy;
}

// The addresses from the first to behind the last element.
struct Range {
    uintptr_t low = UINTPTR_MAX, high = 0; // there are no elements

    Range() = default;
    explicit Range(const Tensor &t)
    {
        if (t.numel() == 0)
            return;
        int64_t last = 0;
        for (int64_t i = 0; i < t.dim(); i++)
            last += (t.size(i) - 1) * t.stride(i);
        low = reinterpret_cast<uintptr_t>(t.data_ptr());
        high = low + static_cast<uintptr_t>(last + 1) * t.element_size();
    }
    bool meets(const Range &other) const
    {
        return low < other.high && other.low < high;
    }
    void add(const Range &other)
    {
        low = std::min(low, other.low);
        high = std::max(high, other.high);
    }
};

Range range_of(const Tensors &list)
{
    Range all;
    for (const Tensor &t : list)
        all.add(Range(t));
    return all;
}

// Whether tensors of the list overlap each other.
bool overlap(const Tensors &list)
{
    std::vector<Range> ranges;
    for (const Tensor &t : list) {
        if (t.numel())
            ranges.emplace_back(t);
    }
    std::sort(ranges.begin(), ranges.end(), [](auto &a, auto &b) { return a.low < b.low; });
    for (size_t i = 1; i < ranges.size(); i++) {
        if (ranges[i].meets(ranges[i - 1]))
            return true;
    }
    return false;
}

// Parts of a list of tensors, as the _v operations take them: displacements are from the lowest
// address.
struct Parts {
    void *base = nullptr;
    std::vector<size_t> counts, displs;
};

class Place
{
  public:
    Place() = default;

    // One input and one output. `in_place`: where in the output the operation may have its input.
    Place(const Tensor &in, const Tensor &out, const void *in_place)
    {
        out_ = add(out, true);
        if (in.is_same(out))
            in_ = out_;
        else
            in_ = add(in, false, Range(in).meets(Range(out)) && in.data_ptr() != in_place);
        inputs = {in};
    }

    void *in() const
    {
        return in_;
    }
    void *out() const
    {
        return out_;
    }

    // The address of contiguous data: the tensor's own, or that of a copy. `written`: copied back
    // afterwards.
    void *add(const Tensor &t, bool written, bool must_copy = false)
    {
        bool plain = t.is_contiguous() && !t.is_conj() && !t.is_neg();
        if (plain && !must_copy) {
            kept.push_back(t);
            return t.data_ptr();
        }
        at::NoGradGuard no_grad;
        c10::InferenceMode no_mode(false);
        Tensor copy = at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
        copy.copy_(t);
        if (written)
            write_back(t, copy);
        kept.push_back(copy);
        return copy.data_ptr();
    }

    // Tensors that lie at multiples of the element's size from each other need no copy, unless
    // other data of the operation lies between them. apart: the caller has seen that no other
    // list's data does.
    Parts add_parts(const Tensors &list, const Type &type, bool written, bool apart = true)
    {
        size_t unit = list.empty() ? 1 : size_t(list[0].element_size() / type.per_element);
        Parts p;
        Range all = range_of(list);
        for (const Tensor &other : kept)
            apart = apart && !all.meets(Range(other));
        apart = apart && !(written && overlap(list));
        for (const Tensor &t : list) {
            auto at = reinterpret_cast<uintptr_t>(t.data_ptr());
            apart = apart && (t.numel() == 0 || (t.is_contiguous() && !t.is_conj() && !t.is_neg() &&
                                                 (at - all.low) % unit == 0));
            p.counts.push_back(count_of(t, type));
            p.displs.push_back(t.numel() == 0 ? 0 : (at - all.low) / unit);
        }
        if (apart && all.high > 0) {
            p.base = reinterpret_cast<void *>(all.low);
            kept.insert(kept.end(), list.begin(), list.end());
            return p;
        }
        copy_parts(list, written, p);
        return p;
    }

    // When the operation is complete, what `from` holds then.
    void copy_to(const Tensor &to, const Tensor &from)
    {
        write_back(to, from);
    }
    // A tensor has been added; the others of its list get what it holds then.
    void copy_to_others(const Tensors &list, const Tensor &added)
    {
        Tensor data = kept.front();
        inputs = list;
        for (const Tensor &t : list) {
            if (!t.is_same(added))
                write_back(t, data);
        }
    }

    Tensors kept;
    std::vector<Tensors> lists; // the results, where the call gave several lists
    Tensors inputs;             // for the profiler
    bool is_part = false;       // of an operation that has an event of the profiler's already
    std::vector<std::pair<Tensor, Tensor>> back; // to where, and from where
    std::shared_ptr<void> reduction;
    int *peer = nullptr; // where a receive from any rank says whose message it was

  private:
    void write_back(const Tensor &to, const Tensor &from)
    {
        Tensor same = writable(to);
        back.emplace_back(same, part_for(same, from));
        kept.push_back(to);
    }

    void copy_parts(const Tensors &list, bool written, Parts &p)
    {
        if (list.empty())
            return;
        at::NoGradGuard no_grad;
        c10::InferenceMode no_mode(false);
        int64_t total = 0;
        for (const Tensor &t : list)
            total += t.numel();
        Tensor whole = at::empty({total}, list[0].options());
        int64_t element = 0;
        size_t at = 0;
        for (size_t i = 0; i < list.size(); i++) {
            Tensor part = whole.narrow(0, element, list[i].numel()).view(list[i].sizes());
            p.displs[i] = at;
            at += p.counts[i];
            element += list[i].numel();
            if (written)
                write_back(list[i], part);
            else
                part.copy_(list[i]);
        }
        p.base = whole.data_ptr();
        kept.push_back(std::move(whole));
    }

    void *in_ = nullptr, *out_ = nullptr;
};

} // namespace

#endif
