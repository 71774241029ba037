use std::collections::BTreeMap;

use super::*;

/// Numbers that look like chance and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Names that share much, little and nothing, are part of each other, and differ behind what a head has.
    fn name(&mut self) -> String {
        let number = self.below(3_000);
        match self.below(5) {
            0 => format!("/ls/jobs/{number}"),
            1 => format!("/ls/jobs/a-rather-long-way-before-names-differ/{number:08}"),
            2 => format!("/ls/ж{}/{number}", "ы".repeat(usize::try_from(number % 7).unwrap())),
            3 => "/ls/same/same/same".chars().take(usize::try_from(number % 19).unwrap()).collect(),
            _ => format!("/ls/{}", "x\0".repeat(usize::try_from(number % 12).unwrap())),
        }
    }
}

fn assert_equal(names: &Names<u64>, expected: &BTreeMap<String, u64>) {
    assert_eq!(names.len(), expected.len());
    assert!(names.from("").eq(expected.iter().map(|(name, value)| (name.as_str(), value))));
    depth(&names.root, true);
    assert_bounded(&names.root, "", None);
}

/// Everything below a node is at least its name, and below the next one's.
fn assert_bounded<V>(node: &Node<V>, low: &str, high: Option<&str>) {
    let is_between = |name: &str| low <= name && high.is_none_or(|high| name < high);
    match node {
        Node::Leaf(rows) => (0..rows.len()).for_each(|at| assert!(is_between(rows.name(at)))),
        Node::Inner(rows) => {
            for at in 0..rows.len() {
                assert!(is_between(rows.name(at)));
                let next = (at + 1 < rows.len()).then(|| rows.name(at + 1)).or(high);
                assert_bounded(rows.value(at), rows.name(at), next);
            }
        }
    }
}

/// All leaves are equally deep, and only the root may be empty.
fn depth<V>(node: &Node<V>, is_root: bool) -> usize {
    assert!(is_root || node.len() > 0, "no node is empty");
    assert!(node.len() <= ROWS_MAX);
    match node {
        Node::Leaf(_) => 0,
        Node::Inner(rows) => {
            let depths: Vec<usize> = (0..rows.len()).map(|at| depth(rows.value(at), false)).collect();
            assert!(depths.windows(2).all(|pair| pair[0] == pair[1]), "{depths:?}");
            depths[0] + 1
        }
    }
}

#[test]
fn names_are_found_in_order_whatever_was_put_in_and_taken_out() {
    let (mut names, mut expected, mut dice) = (Names::new(), BTreeMap::new(), Dice(1));
    for round in 0..60_000_u64 {
        let name = dice.name();
        // It grows, shrinks to nothing and grows again.
        let is_growing = round % 30_000 < 14_000;
        if dice.below(8) < if is_growing { 6 } else { 1 } {
            if names.get(&name).is_none() {
                names.insert(&name, round);
                expected.insert(name, round);
            }
        } else if dice.below(2) == 0 {
            assert_eq!(names.remove(&name), expected.remove(&name), "{name:?}");
        } else {
            let first = expected.pop_first();
            assert_eq!(names.first().map(|(name, value)| (name.to_owned(), *value)), first);
            assert_eq!(names.remove_first(), first.map(|(_, value)| value));
        }
        let name = dice.name();
        assert_eq!(names.get(&name), expected.get(&name), "{name:?}");
        if round % 64 == 0 {
            let from = expected.range(name.clone()..).map(|(name, value)| (name.as_str(), value));
            assert!(names.from(&name).eq(from), "from {name:?}");
        }
        if round % 1_000 == 0 {
            assert_equal(&names, &expected);
        }
    }
    assert_equal(&names, &expected);
}

#[test]
fn names_that_come_in_order_fill_their_nodes() {
    let mut names = Names::new();
    let all: Vec<String> = (0..100_000).map(|number| format!("/ls/n/{number:06}")).collect();
    all.iter().for_each(|name| names.insert(name, 7_u64));
    assert_equal(&names, &all.iter().map(|name| (name.clone(), 7)).collect());
    assert_eq!(depth(&names.root, true), 2, "56 to a leaf, 56 leaves to a node");
    let mut pushed = Names::new();
    all.iter().for_each(|name| pushed.push(name, 7_u64));
    assert_eq!(format!("{pushed:?}"), format!("{names:?}"));
}

#[test]
fn an_index_is_freed_in_small_parts() {
    let mut names = Names::new();
    for number in 0..10_000_u64 {
        names.insert(&format!("/ls/n/{}", number.wrapping_mul(7_919) % 10_000), number);
    }
    let mut parts = 1;
    while names.free_some() {
        parts += 1;
    }
    assert!(parts >= 10_000 / ROWS_MAX, "{parts}");
    assert_eq!(names.from("").next(), None);
    assert!(!Names::<u64>::new().free_some());
}
