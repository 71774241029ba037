//! An ordered index of names that stays quick with a million of them: a B+ tree whose nodes keep their names side by
//! side.
//!
//! A search in a node compares words, the first bytes behind what all its names begin with, and looks at a name itself
//! only where these do not tell. An index of pointers to names would wait for memory at each comparison.
//!
//! Invariant: every leaf is as deep as every other, none is empty but that of an empty index, and a node's names stand in
//! order. Deliberately absent: what the values are; a name is here twice if its record has it, too.

mod rows;

use std::hint::black_box;

use rows::Rows;

/// Rows of a node that is split before it takes another.
const ROWS_MAX: usize = 64;
/// A node with fewer joins a neighbour that has room for it, and for as many again.
const ROWS_MIN: usize = ROWS_MAX / 4;

/// How many names are looked up side by side.
pub(crate) const LOOKED_UP_AT_ONCE: usize = 16;

/// Values by name.
#[derive(Clone, Debug)]
pub(crate) struct Names<V> {
    root: Node<V>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Node<V> {
    Leaf(Rows<V>),
    /// The nodes below, each under a name that is at most its first and above all of the node before it.
    Inner(Rows<Box<Node<V>>>),
}

impl<V> Names<V> {
    pub(crate) fn new() -> Names<V> {
        Names { root: Node::Leaf(Rows::new()), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, name: &str) -> Option<&V> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(rows) => return rows.find(name).ok().map(|at| rows.value(at)),
                Node::Inner(rows) => node = rows.value(child_of(rows, name)),
            }
        }
    }

    /// Looks names up for no other purpose than to have what lies on the way near at hand. All go down side by side, so
    /// that their waits for memory overlap. At most [`LOOKED_UP_AT_ONCE`].
    pub(crate) fn look_up(&self, names: &[&str]) {
        let mut nodes = [&self.root; LOOKED_UP_AT_ONCE];
        let nodes = &mut nodes[..names.len()];
        let mut is_at_leaves = false;
        while !is_at_leaves {
            is_at_leaves = true;
            for (node, name) in nodes.iter_mut().zip(names) {
                if let Node::Inner(rows) = *node {
                    *node = rows.value(child_of(rows, name));
                    is_at_leaves = false;
                }
            }
        }
        let leaves = nodes.iter().filter_map(|node| match node {
            Node::Leaf(rows) => Some(rows),
            Node::Inner(_) => None,
        });
        black_box(leaves.clone().fold(0, |seen, rows| seen ^ rows.touch()));
        black_box(
            leaves.zip(names).fold(0, |seen, (rows, name)| seen ^ rows.find(name).unwrap_or_else(|at| at)),
        );
    }

    /// Adds a name.
    ///
    /// # Panics
    /// When it is here already.
    pub(crate) fn insert(&mut self, name: &str, value: V) {
        let find = |rows: &Rows<V>| rows.find(name).expect_err("a name is added once");
        self.insert_where(name, value, &find, &|rows| child_of(rows, name));
    }

    /// Adds a name above all others, without a search.
    pub(crate) fn push(&mut self, name: &str, value: V) {
        self.insert_where(name, value, &Rows::len, &|rows| rows.len() - 1);
    }

    fn insert_where(
        &mut self,
        name: &str,
        value: V,
        find: &impl Fn(&Rows<V>) -> usize,
        descend: &impl Fn(&Rows<Box<Node<V>>>) -> usize,
    ) {
        self.len += 1;
        if let Some((first, right)) = self.root.insert(name, value, find, descend) {
            let left = std::mem::replace(&mut self.root, Node::Inner(Rows::new()));
            let Node::Inner(rows) = &mut self.root else { unreachable!("it was just made") };
            rows.insert(0, &left.first_name(), Box::new(left));
            rows.insert(1, &first, right);
        }
    }

    /// Takes a name out, if it is here.
    pub(crate) fn remove(&mut self, name: &str) -> Option<V> {
        let value = self.root.remove(&|rows| rows.find(name).ok(), &|rows| child_of(rows, name))?;
        self.on_removed();
        Some(value)
    }

    /// The first name and its value.
    pub(crate) fn first(&self) -> Option<(&str, &V)> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(rows) => return (rows.len() > 0).then(|| (rows.name(0), rows.value(0))),
                Node::Inner(rows) => node = rows.value(0),
            }
        }
    }

    /// Takes the first name out.
    pub(crate) fn remove_first(&mut self) -> Option<V> {
        let value = self.root.remove(&|rows| (rows.len() > 0).then_some(0), &|_| 0)?;
        self.on_removed();
        Some(value)
    }

    fn on_removed(&mut self) {
        self.len -= 1;
        while let Node::Inner(rows) = &mut self.root
            && rows.len() == 1
        {
            self.root = *rows.remove(0);
        }
    }

    /// The names at or above this one, in order.
    pub(crate) fn from(&self, name: &str) -> Iter<'_, V> {
        let mut above = Vec::new();
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(rows) => {
                    let at = rows.find(name).unwrap_or_else(|at| at);
                    return Iter { above, leaf: rows, at };
                }
                Node::Inner(rows) => {
                    let at = child_of(rows, name);
                    above.push((rows, at));
                    node = rows.value(at);
                }
            }
        }
    }

    /// Frees a small part of the index, at its end; tells whether something is left. What is left can be freed, and
    /// nothing else.
    pub(crate) fn free_some(&mut self) -> bool {
        let is_left = self.root.free_last_leaf();
        if !is_left {
            *self = Names::new();
        }
        is_left
    }
}

/// Which node below has this name, if any has; the first one gets what is below all.
fn child_of<V>(rows: &Rows<Box<Node<V>>>, name: &str) -> usize {
    rows.find(name).unwrap_or_else(|at| at.saturating_sub(1))
}

impl<V> Node<V> {
    fn len(&self) -> usize {
        match self {
            Node::Leaf(rows) => rows.len(),
            Node::Inner(rows) => rows.len(),
        }
    }

    fn first_name(&self) -> String {
        match self {
            Node::Leaf(rows) => rows.name(0).to_owned(),
            Node::Inner(rows) => rows.name(0).to_owned(),
        }
    }

    /// Puts a row where `find` says in the leaf to which `descend` leads. Gives the second half and its first name when the
    /// node had to be split.
    fn insert(
        &mut self,
        name: &str,
        value: V,
        find: &impl Fn(&Rows<V>) -> usize,
        descend: &impl Fn(&Rows<Box<Node<V>>>) -> usize,
    ) -> Option<(String, Box<Node<V>>)> {
        match self {
            Node::Leaf(rows) => {
                let at = find(rows);
                rows.insert(at, name, value);
                let rows = rows.split_if_over(ROWS_MAX, at)?;
                Some((rows.name(0).to_owned(), Box::new(Node::Leaf(rows))))
            }
            Node::Inner(rows) => {
                let at = descend(rows);
                if at == 0 && name < rows.name(0) {
                    rows.rename_first(name);
                }
                let (first, right) = rows.value_mut(at).insert(name, value, find, descend)?;
                rows.insert(at + 1, &first, right);
                let rows = rows.split_if_over(ROWS_MAX, at + 1)?;
                Some((rows.name(0).to_owned(), Box::new(Node::Inner(rows))))
            }
        }
    }

    /// Takes out the row that `find` finds in the leaf to which `descend` leads.
    fn remove(
        &mut self,
        find: &impl Fn(&Rows<V>) -> Option<usize>,
        descend: &impl Fn(&Rows<Box<Node<V>>>) -> usize,
    ) -> Option<V> {
        match self {
            Node::Leaf(rows) => find(rows).map(|at| rows.remove(at)),
            Node::Inner(rows) => {
                let at = descend(rows);
                let below = rows.value_mut(at);
                let value = below.remove(find, descend)?;
                if below.len() < ROWS_MIN {
                    join_around(rows, at);
                }
                Some(value)
            }
        }
    }

    /// Tells whether something is left.
    fn free_last_leaf(&mut self) -> bool {
        match self {
            Node::Leaf(rows) => *rows = Rows::new(),
            Node::Inner(rows) => {
                let last = rows.len() - 1;
                if !rows.value_mut(last).free_last_leaf() {
                    rows.remove(last);
                }
            }
        }
        self.len() > 0
    }

    /// Takes over what a node of the same depth has, all of it behind this one's.
    fn append(&mut self, right: Node<V>) {
        match (self, right) {
            (Node::Leaf(left), Node::Leaf(right)) => left.append(right),
            (Node::Inner(left), Node::Inner(right)) => left.append(right),
            (Node::Leaf(_), Node::Inner(_)) | (Node::Inner(_), Node::Leaf(_)) => {
                unreachable!("neighbours are of the same depth")
            }
        }
    }
}

/// Joins a small node with one beside it, or takes it out when it is empty.
fn join_around<V>(rows: &mut Rows<Box<Node<V>>>, at: usize) {
    if rows.value(at).len() == 0 {
        rows.remove(at);
        return;
    }
    let is_small = |rows: &Rows<Box<Node<V>>>, left: usize| {
        rows.value(left).len() + rows.value(left + 1).len() <= ROWS_MAX - ROWS_MIN
    };
    let left = match at {
        _ if at + 1 < rows.len() && is_small(rows, at) => at,
        1.. if is_small(rows, at - 1) => at - 1,
        _ => return,
    };
    let right = rows.remove(left + 1);
    rows.value_mut(left).append(*right);
}

/// Names and values, in order.
#[derive(Clone, Debug)]
pub(crate) struct Iter<'a, V> {
    /// The way from the root, and which node was taken of each.
    above: Vec<(&'a Rows<Box<Node<V>>>, usize)>,
    leaf: &'a Rows<V>,
    at: usize,
}

impl<'a, V> Iter<'a, V> {
    /// Goes on in the next leaf, if there is one.
    fn next_leaf(&mut self) -> Option<()> {
        loop {
            let (rows, at) = self.above.last_mut()?;
            *at += 1;
            if *at < rows.len() {
                break;
            }
            self.above.pop();
        }
        let (rows, at) = self.above.last().copied().expect("one has a node left");
        let mut node: &'a Node<V> = rows.value(at);
        loop {
            match node {
                Node::Leaf(rows) => {
                    (self.leaf, self.at) = (rows, 0);
                    return Some(());
                }
                Node::Inner(rows) => {
                    self.above.push((rows, 0));
                    node = rows.value(0);
                }
            }
        }
    }
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = (&'a str, &'a V);

    fn next(&mut self) -> Option<(&'a str, &'a V)> {
        while self.at == self.leaf.len() {
            self.next_leaf()?;
        }
        let at = self.at;
        self.at += 1;
        Some((self.leaf.name(at), self.leaf.value(at)))
    }
}

#[cfg(test)]
mod tests;
