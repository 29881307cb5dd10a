//! The closed sets: states, kinds, lanes, purposes, reasons. One word each, the same in Rust, SQL, JSON and metrics.

mod campaign;
mod mail;
mod product;
mod send;
mod sequence;

/// Makes a closed set that reads the same in Rust, JSON and Postgres text.
macro_rules! closed_set {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+ }) => {
        $crate::named_enum! {
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
            pub wire enum $name { $($(#[doc = $doc])+ $variant = $text,)+ }
        }

        impl $name {
            /// The member's docstring, for the documents of the API.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let words: Vec<&str> = Self::ALL.iter().map(|member| member.as_str()).collect();
                schemars::json_schema!({"type": "string", "enum": words})
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl sqlx::Type<sqlx::Postgres> for $name {
            fn type_info() -> sqlx::postgres::PgTypeInfo {
                <str as sqlx::Type<sqlx::Postgres>>::type_info()
            }
            fn compatible(ty: &sqlx::postgres::PgTypeInfo) -> bool {
                <str as sqlx::Type<sqlx::Postgres>>::compatible(ty)
            }
        }

        impl sqlx::postgres::PgHasArrayType for $name {
            fn array_type_info() -> sqlx::postgres::PgTypeInfo {
                <String as sqlx::postgres::PgHasArrayType>::array_type_info()
            }
        }

        impl<'q> sqlx::Encode<'q, sqlx::Postgres> for $name {
            fn encode_by_ref(
                &self,
                buffer: &mut sqlx::postgres::PgArgumentBuffer,
            ) -> Result<sqlx::encode::IsNull, sqlx::error::BoxDynError> {
                <&str as sqlx::Encode<'q, sqlx::Postgres>>::encode_by_ref(&self.as_str(), buffer)
            }
        }

        impl<'r> sqlx::Decode<'r, sqlx::Postgres> for $name {
            fn decode(value: sqlx::postgres::PgValueRef<'r>) -> Result<Self, sqlx::error::BoxDynError> {
                let text = <&str as sqlx::Decode<'r, sqlx::Postgres>>::decode(value)?;
                Self::parse(text).ok_or_else(|| format!("{text:?} is not a {}", stringify!($name)).into())
            }
        }
    };
}
pub(crate) use closed_set;

pub use campaign::*;
pub use mail::*;
pub use product::*;
pub use send::*;
pub use sequence::*;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_parses_back_to_its_member() {
        for state in SendState::ALL {
            assert_eq!(SendState::parse(state.as_str()), Some(*state));
        }
        assert_eq!(SendState::parse("gone"), None);
    }

    #[test]
    fn five_purposes_are_marketing_five_operational_three_transactional() {
        let count = |class| MessagePurpose::ALL.iter().filter(|purpose| purpose.classification() == class).count();
        assert_eq!(count(Classification::Marketing), 5);
        assert_eq!(count(Classification::Operational), 5);
        assert_eq!(count(Classification::Transactional), 3);
    }
}
