//! [`named_enum!`](crate::named_enum): enums whose members have one name each.

/// Makes an enum whose members have one name each, the same in the ledger, the API and metrics. The enum gets `ALL`, `NAMES`,
/// `as_str` and `parse`. A `wire enum`, which derives serde's traits itself, has these names there, too.
#[macro_export]
macro_rules! named_enum {
    ($(#[$meta:meta])* $vis:vis wire enum $enum:ident { $($(#[$doc:meta])* $member:ident = $name:literal,)+ }) => {
        $crate::named_enum! {
            $(#[$meta])*
            $vis enum $enum { $($(#[$doc])* #[serde(rename = $name)] $member = $name,)+ }
        }
    };
    ($(#[$meta:meta])* $vis:vis enum $enum:ident { $($(#[$doc:meta])* $member:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        $vis enum $enum { $($(#[$doc])* $member,)+ }

        #[allow(dead_code, reason = "not every enum is listed or parsed")]
        impl $enum {
            /// Every member, in order.
            $vis const ALL: &'static [Self] = &[$(Self::$member,)+];
            /// The names of all members, in order.
            $vis const NAMES: &'static [&'static str] = &[$($name,)+];

            /// The member's name.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$member => $name,)+ }
            }

            /// The member with this name.
            #[must_use]
            $vis fn parse(text: &str) -> Option<Self> {
                match text { $($name => Some(Self::$member),)+ _ => None }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    named_enum! {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        wire enum Outcome {
            Done = "done",
            Abandoned = "given_up",
        }
    }

    #[test]
    fn a_wire_enum_is_written_and_read_by_its_names() {
        for outcome in Outcome::ALL.iter().copied() {
            let written = serde_json::json!(outcome);
            assert_eq!(written, outcome.as_str());
            assert_eq!(serde_json::from_value::<Outcome>(written).ok(), Some(outcome));
        }
    }
}
