//! Judges of a run, each in a file of its own: the contract (ARCHITECTURE section 1) as code.
//!
//! Invariant: a judge looks at what clients were told, at what members wrote down, sent and committed, at who led and at
//! what time it was, and at nothing of how that came about; an outcome that nobody was told is unknown, not a failure.
//! Deliberately absent: watches, which are not built.

pub mod beat;
pub mod birth;
pub mod commitment;
pub mod durability;
pub mod election;
pub mod exclusion;
pub mod expiry;
pub mod history;
pub mod lateness;
pub mod leadership;
pub mod line;
pub mod majority;
pub mod matching;
pub mod membership;
pub mod nonce;
pub mod once;
pub mod orphan;
pub mod reading;
pub mod refusal;
pub mod space;
pub mod token;
pub mod wait;

use std::any::Any;
use std::fmt;

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which, with its place in the contract.
    pub rule: &'static str,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.detail)
    }
}

/// What a judge says.
pub type Verdict = Result<(), Violation>;

/// A violation of a rule.
pub(crate) fn violated<T>(rule: &'static str, detail: String) -> Result<T, Violation> {
    Err(Violation { rule, detail })
}

/// The rule that a panic breaks.
pub(crate) const NO_PANIC: &str = "no assertion fails";

/// What a panic says.
pub(crate) fn words_of_panic(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
