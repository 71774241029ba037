//! `lockstep-tuning check` as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

fn check(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_lockstep-tuning");
    Command::new(program).arg("check").args(arguments).output().expect("runs")
}

#[test]
fn good_host_is_described_and_its_directory_left_as_it_was() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("good-host");
    std::fs::create_dir_all(&directory).expect("a directory");
    let output = check(&[directory.to_str().expect("UTF-8"), "--connections", "16", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let observations: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let observations = observations.as_array().expect("a list");
    for subject in
        ["io_uring", "locked memory", "open files", "direct durable writes", "durable write latency"]
    {
        let observation = observations.iter().find(|observation| observation["subject"] == subject);
        let observation = observation.unwrap_or_else(|| panic!("{subject} is looked at"));
        assert_eq!(observation["standing"], "fine", "{observation}");
        assert!(!observation["why"].as_str().expect("text").is_empty());
    }
    assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), 0);
}

#[test]
fn missing_must_have_is_named_with_what_to_do_and_the_exit_status_tells() {
    let output = check(&["/does/not/exist"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("direct durable writes [MISSING]"), "{text}");
    assert!(text.contains("/does/not/exist"), "{text}");
    assert!(text.contains("create it"), "{text}");
}
