//! Scripts for the rows of docs/SEMANTICS.md, and how a script is held against its trace.

mod locks;
mod requests;
mod restoration;
mod sessions;

use expect_test::Expect;

use super::script::run;
use crate::table::Limits;

fn check(script: &str, trace: Expect) {
    check_with(Limits::default(), script, trace);
}

fn check_with(limits: Limits, script: &str, trace: Expect) {
    trace.assert_eq(&run(limits, script));
}
