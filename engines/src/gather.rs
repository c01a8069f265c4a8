//! Lists over all engines, made at compile time.

/// A static list of what every engine of [`crate::ALL`] has: `gather!(Format, engine => engine.formats)`.
macro_rules! gather {
    ($type:ty, $engine:ident => $list:expr) => {{
        const ENGINES: &[$crate::EngineSupport] = &$crate::ALL;
        const LISTS: [&[$type]; ENGINES.len()] = {
            let mut lists: [&[$type]; ENGINES.len()] = [&[]; ENGINES.len()];
            let mut index = 0;
            // Loops, because constants cannot use iterators.
            while index < ENGINES.len() {
                let $engine = &ENGINES[index];
                lists[index] = $list;
                index += 1;
            }
            lists
        };
        const JOINED: [$type; $crate::gather::total_length(&LISTS)] = $crate::gather::join_lists(&LISTS);
        &JOINED
    }};
}

/// Number of items in all lists.
pub(crate) const fn total_length<T>(lists: &[&[T]]) -> usize {
    let mut length = 0;
    let mut index = 0;
    while index < lists.len() {
        length += lists[index].len();
        index += 1;
    }
    length
}

/// The items of all lists, whose number is `N`. At least one list has an item.
pub(crate) const fn join_lists<T: Copy, const N: usize>(lists: &[&[T]]) -> [T; N] {
    // Find the first list with an item.
    let mut index = 0;
    while lists[index].is_empty() {
        index += 1;
    }
    // Any item serves as the first content of the array; all are replaced.
    let mut joined = [lists[index][0]; N];
    let mut length = 0;
    while index < lists.len() {
        let mut item_index = 0;
        while item_index < lists[index].len() {
            joined[length] = lists[index][item_index];
            length += 1;
            item_index += 1;
        }
        index += 1;
    }
    joined
}
