// GroupCache: what a sequence in recall keeps in memory of pages that are on disk. Recall reads a
// few groups of tokens of many pages, and from step to step mostly the same ones; so their unit of
// residency is a group, not a page (docs/decisions/0010-groups-in-memory.md). Groups lie in slots
// that the pool lends, as they are stored. When a place is needed, the group goes whose share of
// the attention, summed over the steps and decayed, is the smallest; those of permanent zones and
// of the first tokens (AttentionOptions::retain_first) go when there is no other. A purge
// (group_cache_purge.cc) takes groups out for which nothing else comes. Where tokens are weighed a
// group's attention counts as often as the largest weight of its tokens says.
//
// Used by the engine loop alone, but for load() and copy().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_store.h"
#include "page/page_stream.h"

namespace headrace {

class GroupCache final : public SlotBorrower {
 public:
  /// Whether pages of this store can be read by groups.
  static bool is_possible(const PageStoreOptions& options);
  /// Memory for the books of a sequence, and for those of a slot.
  static std::uint64_t bytes(const PageStoreOptions& options);
  static std::uint64_t bytes_per_slot(const PageStoreOptions& options);

  /// `table` must stay, with at least the blocks that were chosen from, and so must `zones`, see
  /// RecallView, and `weights` [group of the text]; empty: 1.
  GroupCache(PageStore& store, const PageTable& table, const std::vector<std::uint8_t>& zones,
             const std::vector<float>& weights);
  ~GroupCache() override;

  /// Between two steps: borrows a slot more for each layer, until this sequence has its share of
  /// the pool. `slots_kept_free` stay free besides. Errors: those of PageStore::make_room().
  Result<void> grow(std::uint32_t slots_kept_free);
  /// All slots, between two steps.
  void give_back() override;
  /// What the last step read of it stays, as far as there is place.
  void page_leaves(const Block& block, std::uint32_t layer) override;

  /// A group that is here, between two steps.
  struct Held {
    std::uint32_t layer = 0;
    std::uint32_t group = 0;  ///< of the text
    double mass = 0;          ///< of the attention, decayed and weighed
  };
  std::vector<Held> held() const;
  /// What a layer's steps gave to the groups of a block, wherever they are.
  double mass(std::uint32_t layer, std::uint32_t block) const;
  /// Between two steps: takes these groups out, and gives back the slots that the others leave
  /// free.
  void drop(std::span<const Held> groups, const char* reason);

  /// Begins a layer: `blocks` says of which blocks [block] the chosen groups are to be had here.
  /// Those for which there is no place become 0. Returns how many groups must be loaded.
  std::size_t choose(std::uint32_t layer, const TokenChoice& choice,
                     std::span<std::uint8_t> blocks);
  /// Loads one of them. Any thread.
  void load(std::size_t index);
  /// When all have been loaded: the blocks of those that could not be become 0.
  void end_loads(std::span<std::uint8_t> blocks);
  /// Whether some of the chosen groups of the layer under way wait for the next step.
  bool defers() const { return defers_; }
  /// Whether a group of a block is in memory, in the layer under way. Any thread.
  bool has(std::uint32_t block, std::uint32_t group) const {
    return layer_->place[block * groups_of_block_ + group] != 0;
  }
  /// Puts what a kv head has in these groups of a block into its place in `page`. Any thread.
  void copy(std::uint32_t block, std::uint32_t kv_head, std::span<const std::uint16_t> groups,
            std::byte* page) const;

 private:
  /// Where a group can be.
  struct Place {
    static constexpr std::uint32_t nobody = 0xFFFF'FFFF;
    std::uint32_t group = nobody;  ///< of the text: block * groups_of_block_ + group of it
    bool is_needed = false;        ///< by the layer under way
    bool is_retained = false;      ///< leaves after all that is not
    bool is_empty() const { return group == nobody; }
  };
  struct Layer {
    std::vector<SlotIndex> slots;
    std::vector<Place> places;         // of all slots, one after the other
    double wanted = 1;                 // groups a step, of pages elsewhere; a moving mean
    std::vector<std::uint32_t> place;  // [group of the text]: + 1; 0: in none
    std::vector<std::uint8_t> chosen;  // [group of the text] by the last step
    std::vector<float> mass;           // [group of the text] of the attention, decayed
    bool is_read() const { return !place.empty(); }  // by groups: no window
  };
  struct Load {
    const Block* block = nullptr;
    std::uint32_t group = 0;  // of the text
    std::uint32_t place = 0;
    bool has_failed = false;
  };

  std::uint32_t number_of(const Layer& layer) const {
    return static_cast<std::uint32_t>(&layer - layers_.data());
  }
  void release(const char* reason);
  void give_back(SlotIndex slot);
  float worth(const Layer& layer, std::uint32_t group) const {
    return layer.mass[group] * (weights_.empty() ? 1.0F : weights_[group]);
  }
  double need(const Layer& layer, double more) const;
  Layer& poorest();
  void add_slot(Layer& layer, SlotIndex slot);
  SlotIndex take_slot(Layer& layer);
  SlotIndex remove_last_slot(Layer& layer);
  void balance();
  std::byte* data(const Layer& layer, std::uint32_t place) const;
  void age(Layer& layer, const TokenChoice& choice) const;
  bool is_retained(std::uint32_t group) const;
  void find_victims(const Layer& layer, std::size_t count);
  void note_chosen(Layer& layer, const TokenChoice& choice) const;
  void defer(const TokenChoice& choice, std::size_t places);
  void make_places(Layer& layer);
  void put(Layer& layer, std::uint32_t place, std::uint32_t group);
  void forget(Layer& layer, Place& place);
  void evict(Layer& layer, Place& place, const char* reason);

  PageStore& store_;
  const PageTable& table_;
  const std::vector<std::uint8_t>& zones_;
  const std::vector<float>& weights_;
  const std::uint32_t groups_of_block_;
  const std::uint64_t group_bytes_;
  std::uint32_t slots_ = 0;  // borrowed
  std::vector<Layer> layers_;
  // Of the layer under way.
  Layer* layer_ = nullptr;
  bool defers_ = false;
  std::vector<Load> loads_;
  std::vector<std::uint32_t> victims_;  // places
  std::vector<std::uint32_t> kept_;     // groups of the page that leaves
};

}  // namespace headrace
