//! A list whose items hold the keys of consecutive ranges: the directory of the index.

use crate::packed_keys::{KEYS_RESERVED, KeyRef, PackedKeys};

/// Items in the order of their keys. Each but the first has a name: no key in it is below its name, and all
/// keys in the items before it are.
#[derive(Clone, Debug)]
pub(crate) struct NamedList<T> {
    /// Of all items but the first: what many names start with is stored once, and a search compares few
    /// bytes of each.
    names: PackedKeys,
    items: Vec<T>,
}

impl<T> NamedList<T> {
    pub(crate) fn new(first: T) -> Self {
        Self { names: PackedKeys::default(), items: vec![first] }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn get(&self, position: usize) -> Option<&T> {
        self.items.get(position)
    }

    pub(crate) fn get_mut(&mut self, position: usize) -> Option<&mut T> {
        self.items.get_mut(position)
    }

    /// The position of the item that holds this key, if any does.
    pub(crate) fn position_of(&self, key: &[u8]) -> usize {
        self.names.search(key).map_or_else(|position| position, |position| position + 1)
    }

    /// The name of an item. The first one has none.
    pub(crate) fn name(&self, position: usize) -> Option<KeyRef<'_>> {
        self.names.get(position.checked_sub(1)?)
    }

    /// The items from a position on, with their names.
    pub(crate) fn iter_from(
        &self,
        position: usize,
    ) -> impl Iterator<Item = (Option<KeyRef<'_>>, &T)> {
        let items = self.items.iter().enumerate().skip(position);
        items.map(|(position, item)| (self.name(position), item))
    }

    pub(crate) fn iter_mut_from(&mut self, position: usize) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().skip(position)
    }

    /// Inserts an item after the one at this position, which no longer holds keys from `name` on.
    pub(crate) fn insert_after(&mut self, position: usize, name: &[u8], item: T) {
        self.names.insert(position, name);
        if self.items.len() == self.items.capacity() {
            self.items.reserve_exact(KEYS_RESERVED);
        }
        self.items.insert(position + 1, item);
    }

    /// Removes an item whose keys were moved to the one before it. If it is the first one, the next item
    /// becomes the first; its name is returned.
    pub(crate) fn remove(&mut self, position: usize) -> (T, Option<Vec<u8>>) {
        let first = if position == 0 { self.name(1).map(KeyRef::to_vec) } else { None };
        let name = position.saturating_sub(1);
        if name < self.names.len() {
            self.names.remove(name);
        }
        (self.items.remove(position), first)
    }

    /// Gives an item another name, which still separates it from the items around it.
    pub(crate) fn rename(&mut self, position: usize, name: &[u8]) {
        if let Some(position) = position.checked_sub(1) {
            self.names.remove(position);
            self.names.insert(position, name);
        }
    }

    /// Moves the items from a position above 0 on to a new list. Also returns the name of the first of them.
    pub(crate) fn split_off(&mut self, position: usize) -> (Vec<u8>, Self) {
        let names = self.names.split_off(position);
        let name = self.name(position).map(KeyRef::to_vec).unwrap_or_default();
        self.names.remove(position - 1);
        let items = self.items.split_off(position);
        self.items.shrink_to(position + KEYS_RESERVED);
        (name, Self { names, items })
    }

    /// Moves the items of the next list to the end of this one. `name` is that of the first of them.
    pub(crate) fn append(&mut self, name: &[u8], next: Self) {
        self.names.insert(self.names.len(), name);
        self.names.append(&next.names);
        self.items.reserve_exact(next.items.len());
        self.items.extend(next.items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(list: &NamedList<u32>) -> Vec<(Option<Vec<u8>>, u32)> {
        list.iter_from(0).map(|(name, item)| (name.map(KeyRef::to_vec), *item)).collect()
    }

    fn named(name: &str, item: u32) -> (Option<Vec<u8>>, u32) {
        (Some(name.into()), item)
    }

    fn list() -> NamedList<u32> {
        let mut list = NamedList::new(0);
        list.insert_after(0, b"k20", 2);
        list.insert_after(0, b"k10", 1);
        list.insert_after(2, b"k30", 3);
        list
    }

    #[test]
    fn a_key_is_in_the_last_item_whose_name_is_not_above_it() {
        let list = list();
        let positions = ["", "k1", "k10", "k11", "k20", "k299", "k30", "x"];
        let positions = positions.map(|key| list.position_of(key.as_bytes()));
        assert_eq!(positions, [0, 0, 1, 1, 2, 2, 3, 3]);
        let expected = [(None, 0), named("k10", 1), named("k20", 2), named("k30", 3)];
        assert_eq!(items(&list), expected);
    }

    #[test]
    fn names_go_with_their_items() {
        let mut list = list();
        assert_eq!(list.remove(2), (2, None));
        assert_eq!(items(&list), [(None, 0), named("k10", 1), named("k30", 3)]);
        assert_eq!(list.remove(0), (0, Some(b"k10".to_vec())));
        assert_eq!(items(&list), [(None, 1), named("k30", 3)]);
        list.rename(1, b"k25");
        assert_eq!(list.position_of(b"k26"), 1);
        assert_eq!(list.remove(1), (3, None));
        assert_eq!(list.remove(0), (1, None));
    }

    #[test]
    fn a_list_is_split_and_joined_anywhere() {
        for position in 1..4 {
            let mut lower = list();
            let (name, upper) = lower.split_off(position);
            assert_eq!(name, format!("k{position}0").into_bytes());
            assert_eq!((lower.len(), upper.len()), (position, 4 - position));
            let (first, item) = upper.iter_from(0).next().unwrap();
            assert!(first.is_none() && *item == position as u32);
            lower.append(&name, upper);
            assert_eq!(items(&lower), items(&list()));
        }
    }
}
