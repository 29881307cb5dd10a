//! `AUTH PLAIN` and `AUTH LOGIN` (RFC 4954, RFC 4616).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// What a client must present.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name.
    pub user: String,
    /// Password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// An exchange that waits for the client's next line.
#[derive(Debug)]
pub(crate) enum Exchange {
    Plain,
    LoginUser,
    LoginPassword { user: Vec<u8> },
}

/// What a line of an exchange leads to.
#[derive(Debug)]
pub(crate) enum Turn {
    Ask(Exchange),
    Presented { user: Vec<u8>, password: Vec<u8> },
    Unreadable,
}

impl Exchange {
    /// The exchange `AUTH <mechanism> [initial]` begins; `None` for mechanisms we do not have.
    pub(crate) fn begin(mechanism: &str, initial: Option<&str>) -> Option<Turn> {
        let exchange = if mechanism.eq_ignore_ascii_case("PLAIN") {
            Self::Plain
        } else if mechanism.eq_ignore_ascii_case("LOGIN") {
            Self::LoginUser
        } else {
            return None;
        };
        Some(match initial {
            Some(initial) => exchange.line(initial),
            None => Turn::Ask(exchange),
        })
    }

    /// The `334` line that asks for what comes next.
    pub(crate) fn prompt(&self) -> &'static str {
        match self {
            Self::Plain => "334 ",
            Self::LoginUser => "334 VXNlcm5hbWU6",
            Self::LoginPassword { .. } => "334 UGFzc3dvcmQ6",
        }
    }

    pub(crate) fn line(self, line: &str) -> Turn {
        let Ok(decoded) = STANDARD.decode(line.trim()) else {
            return Turn::Unreadable;
        };
        match self {
            Self::Plain => {
                // authorisation identity NUL user NUL password
                let mut parts = decoded.split(|byte| *byte == 0);
                match (parts.next(), parts.next(), parts.next(), parts.next()) {
                    (Some(_), Some(user), Some(password), None) => {
                        Turn::Presented { user: user.to_vec(), password: password.to_vec() }
                    }
                    _ => Turn::Unreadable,
                }
            }
            Self::LoginUser => Turn::Ask(Self::LoginPassword { user: decoded }),
            Self::LoginPassword { user } => Turn::Presented { user, password: decoded },
        }
    }
}
