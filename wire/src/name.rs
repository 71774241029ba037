//! Names of locks: absolute paths, parsed once (ARCHITECTURE section 2, "Names").
//!
//! Invariant: a [`Name`] is `/ls/<namespace>/...`, UTF-8, without an empty segment or a control
//! character, of at most 512 bytes. Names are compared as bytes: `job`, `job1` and `job/1` are unrelated.

use std::fmt;

use crate::limit::NAME_BYTES_MAX;

/// A lock's name that has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a str);

/// Why a text is not a lock's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// More than 512 bytes.
    TooLong {
        /// How many there are.
        bytes: usize,
    },
    /// It does not begin with `/ls/`.
    NotAbsolute,
    /// Nothing follows the namespace.
    NoLock,
    /// Two slashes meet, or the last byte is one.
    EmptySegment,
    /// A control character, a newline for example.
    ControlCharacter,
    /// Not UTF-8.
    NotText,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameError::TooLong { bytes } => {
                write!(f, "a lock's name has at most {NAME_BYTES_MAX} bytes, this one has {bytes}")
            }
            NameError::NotAbsolute => f.write_str("a lock's name begins with /ls/, as in /ls/demo/job"),
            NameError::NoLock => {
                f.write_str("a lock's name has a namespace and at least one more segment, as in /ls/demo/job")
            }
            NameError::EmptySegment => {
                f.write_str("a lock's name has no empty segment: no // inside and no / at its end")
            }
            NameError::ControlCharacter => f.write_str("a lock's name has no control characters"),
            NameError::NotText => f.write_str("a lock's name is UTF-8"),
        }
    }
}

impl std::error::Error for NameError {}

impl<'a> Name<'a> {
    /// Checks a text.
    pub fn parse(text: &'a str) -> Result<Name<'a>, NameError> {
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        let path = text.strip_prefix("/ls/").ok_or(NameError::NotAbsolute)?;
        if path.split('/').any(str::is_empty) {
            return Err(NameError::EmptySegment);
        }
        if !path.contains('/') {
            return Err(NameError::NoLock);
        }
        if path.chars().any(char::is_control) {
            return Err(NameError::ControlCharacter);
        }
        Ok(Name(text))
    }

    /// Checks bytes.
    pub fn parse_bytes(bytes: &'a [u8]) -> Result<Name<'a>, NameError> {
        Name::parse(std::str::from_utf8(bytes).map_err(|_| NameError::NotText)?)
    }

    /// The whole path.
    pub fn as_str(self) -> &'a str {
        self.0
    }

    /// What routing, quotas and permissions go by: the segment behind `/ls/`.
    pub fn namespace(self) -> &'a str {
        self.0["/ls/".len()..].split('/').next().expect("a parsed name has a namespace")
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_paths_with_a_namespace_are_accepted() {
        for text in ["/ls/demo/job", "/ls/demo/job1", "/ls/demo/job/1", "/ls/ä/ö", "/ls/a/b c"] {
            assert_eq!(Name::parse(text).map(Name::as_str), Ok(text));
        }
        assert_eq!(Name::parse("/ls/pay/ledger/7").unwrap().namespace(), "pay");
        let longest = format!("/ls/n/{}", "x".repeat(NAME_BYTES_MAX - 6));
        assert_eq!(longest.len(), NAME_BYTES_MAX);
        assert!(Name::parse(&longest).is_ok());
    }

    #[test]
    fn names_that_are_not_are_refused_with_the_reason() {
        let long = format!("/ls/n/{}", "x".repeat(NAME_BYTES_MAX - 5));
        for (text, error) in [
            ("", NameError::NotAbsolute),
            ("job", NameError::NotAbsolute),
            ("/ls", NameError::NotAbsolute),
            ("/ls/", NameError::EmptySegment),
            ("/ls/demo", NameError::NoLock),
            ("/ls/demo/", NameError::EmptySegment),
            ("/ls//job", NameError::EmptySegment),
            ("/ls/demo//job", NameError::EmptySegment),
            ("/ls/demo/job/", NameError::EmptySegment),
            ("/ls/demo/a\nb", NameError::ControlCharacter),
            (long.as_str(), NameError::TooLong { bytes: NAME_BYTES_MAX + 1 }),
        ] {
            assert_eq!(Name::parse(text), Err(error), "{text:?}");
        }
        assert_eq!(Name::parse_bytes(b"/ls/demo/\xff"), Err(NameError::NotText));
    }
}
