//! What the probe sees and says.

use std::path::PathBuf;

use lockstep_ring::RingConfig;
use lockstep_ring::probe::{Needs, Shortage, Subject, examine, require};

use crate::directory;

fn needs(directory: PathBuf) -> Needs {
    Needs {
        directory,
        rings: 2,
        ring: RingConfig::default(),
        buffer_groups: vec![(256, 4096)],
        open_files: 64,
    }
}

#[test]
fn host_that_has_everything_passes_and_nothing_is_left_behind() {
    let directory = directory();
    let findings = examine(&needs(directory.path().to_owned()));
    let subjects: Vec<Subject> = findings.iter().map(|finding| finding.subject).collect();
    let all = [
        Subject::IoUring,
        Subject::RingAbilities,
        Subject::OpenFiles,
        Subject::LockedMemory,
        Subject::DirectIo,
    ];
    assert_eq!(subjects, all);
    for finding in &findings {
        assert!(finding.outcome.is_ok(), "{}: {:?}", finding.subject, finding.outcome);
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
    assert_eq!(require(&needs(directory.path().to_owned())), Ok(()));
}

#[test]
fn file_system_without_direct_writes_is_refused_by_name() {
    // A pseudo file system takes no new files; a directory that is none takes nothing.
    for directory in ["/proc", "/does/not/exist"] {
        let shortage = require(&needs(directory.into())).expect_err("refused");
        assert!(matches!(shortage, Shortage::DirectoryUnusable { .. }), "{shortage:?}");
        assert!(shortage.to_string().contains(directory), "{shortage}");
    }
}

#[test]
fn too_many_open_files_are_refused_with_limit_and_need() {
    let directory = directory();
    let mut needs = needs(directory.path().to_owned());
    // More than the kernel allows anybody (fs.nr_open), so that raising fails even for root.
    needs.open_files = 1 << 40;
    let shortage = require(&needs).expect_err("refused");
    let Shortage::OpenFiles { soft, needed, .. } = shortage else { panic!("unexpected {shortage:?}") };
    assert_eq!(needed, 1 << 40);
    let sentence = shortage.to_string();
    assert!(sentence.contains(&soft.to_string()) && sentence.contains(&needed.to_string()), "{sentence}");
    assert!(shortage.remedy().contains("LimitNOFILE=1099511627776"));
}
