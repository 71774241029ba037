//! The table of known-bad variants, and those of them that need no build of their own: the drivers.

use std::collections::BTreeSet;

use lockstep_sim::mutants::{Finding, Subject, TABLE, Trial};
use lockstep_sim::world::defect::Defect;
use lockstep_wire::mutant::Mutant;

/// What a newcomer reads.
const PAGE: &str = include_str!("../../../../docs/TESTING.md");

#[test]
fn every_variant_has_one_name_one_row_and_one_line_in_the_docs() {
    let parts = Mutant::ALL.iter().map(|mutant| Subject::Part(*mutant));
    let subjects: Vec<Subject> = parts.chain(Defect::ALL.map(Subject::Driver)).collect();
    let names: BTreeSet<&str> = subjects.iter().map(|subject| subject.name()).collect();
    assert_eq!(names.len(), subjects.len(), "two variants share a name");
    for subject in &subjects {
        let rows = TABLE.iter().filter(|row| row.subject == *subject).count();
        assert_eq!(rows, 1, "{} has {rows} rows", subject.name());
        let lines =
            PAGE.lines().filter(|line| line.starts_with(&format!("| `{}` |", subject.name()))).count();
        assert_eq!(lines, 1, "{} has {lines} lines in docs/TESTING.md", subject.name());
    }
    assert_eq!(TABLE.len(), subjects.len());
}

#[test]
fn what_a_variant_is_looked_for_in_breaks_no_rule_by_itself() {
    for row in TABLE {
        let seeds = match row.trial {
            // Tests of their own run many of those.
            Trial::Drawn | Trial::Commands(_) => 0,
            Trial::Run(_) => 2,
            Trial::Play(_) => 5,
        };
        for seed in 1..=seeds {
            if let Err(violation) = row.attempt(seed, false) {
                panic!("{}, seed {seed}: {violation}", row.subject.name());
            }
        }
    }
}

#[test]
fn every_known_bad_driver_is_seen() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for row in TABLE.iter().filter(|row| matches!(row.subject, Subject::Driver(_))) {
        let finding = row.hunt(cores);
        assert!(matches!(finding, Finding::Seen(_)), "{}: {finding}", row.subject.name());
    }
}
