//! Values as they are written: an object is an object, a word is a string.
//!
//! serde's derived types are more generous: a struct also reads from a list of its fields in order, and a word from an object with
//! that one key. Neither is in the contract, and what is accepted once must be accepted for ever.

use serde::{
    Deserializer,
    de::{
        Error as _, IntoDeserializer, Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Error, Value};

/// A value that is read strictly, at every depth.
pub(super) struct Plain(pub Value);

impl Plain {
    fn unexpected(&self) -> Unexpected<'_> {
        match &self.0 {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Number(_) => Unexpected::Other("number"),
            Value::String(_) => Unexpected::Other("string"),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        }
    }
}

impl<'de> Deserializer<'de> for Plain {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.into_iter().map(Self));
                let value = visitor.visit_seq(&mut items)?;
                items.end().map(|()| value)
            }
            Value::Object(entries) => {
                let mut entries = MapDeserializer::new(entries.into_iter().map(|(key, value)| (key, Self(value))));
                let value = visitor.visit_map(&mut entries)?;
                entries.end().map(|()| value)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.0.is_object() {
            self.deserialize_any(visitor)
        } else {
            Err(Error::invalid_type(self.unexpected(), &"an object"))
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(word) => visitor.visit_enum(word.into_deserializer()),
            _ => Err(Error::invalid_type(self.unexpected(), &"a string")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

impl IntoDeserializer<'_, Error> for Plain {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        List,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        kind: Option<Kind>,
        size: Option<f64>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        inner: Option<Inner>,
        #[serde(default)]
        many: Vec<Inner>,
    }

    #[rstest]
    #[case(json!({"inner": {"kind": "list", "size": 1}}), true)]
    #[case(json!({"inner": null, "many": [{"kind": null}]}), true)]
    #[case::a_list_for_an_object(json!({"inner": [null, null]}), false)]
    #[case::deeper(json!({"many": [["list", 1.5]]}), false)]
    #[case::an_object_for_a_word(json!({"inner": {"kind": {"list": null}}}), false)]
    #[case::unknown(json!({"inner": {"colour": 1}}), false)]
    fn an_object_is_an_object_and_a_word_a_string(#[case] value: Value, #[case] good: bool) {
        assert_eq!(Outer::deserialize(Plain(value)).is_ok(), good);
    }

    #[test]
    fn what_is_missing_is_said_in_the_contracts_words() {
        let error = Outer::deserialize(Plain(json!({"inner": [null]}))).unwrap_err();
        assert_eq!(error.to_string(), "invalid type: sequence, expected an object");
    }
}
