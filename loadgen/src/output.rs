//! Where a run writes what it says.
//!
//! Invariant: a reader that has gone away ends nothing and is not worth a word. Deliberately absent: what is said.

use std::io::{self, ErrorKind, Write};

/// Writes data to standard output.
///
/// # Errors
/// When it cannot be written although somebody reads it.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a line to standard error, as far as that can be written.
pub fn progress(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
