//! JSON Schemas, each with the named ones that it refers to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A JSON Schema (draft 2020-12) and the named schemas it refers to.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    pub value: Value,
    /// The named schemas it needs.
    pub components: BTreeMap<String, Value>,
}

/// A property of an object, a query parameter or a path parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaField {
    pub name: String,
    pub schema: Schema,
    /// Whether it must be there.
    pub required: bool,
}

impl Schema {
    /// A schema that refers to no other.
    pub(crate) fn raw(value: Value) -> Self {
        Self { value, components: BTreeMap::new() }
    }

    /// Gives it a name in `components/schemas` and answers a reference to it. A test checks that no two schemas have one name.
    pub(crate) fn named(self, name: &str) -> Self {
        let mut components = self.components;
        components.insert(name.to_owned(), self.value);
        Self { value: json!({"$ref": format!("#/components/schemas/{name}")}), components }
    }

    /// Gives it a name if it has none.
    pub(crate) fn named_unless_it_is(self, name: impl FnOnce() -> String) -> Self {
        if self.value.get("$ref").is_some() { self } else { self.named(&name()) }
    }

    /// Adds fields to an object, or to each of several alternatives.
    pub(crate) fn add_fields(&mut self, fields: &[SchemaField]) {
        for field in fields {
            self.components.extend(field.schema.components.clone());
        }
        let named = self.value["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        match named.and_then(|name| self.components.get_mut(name)) {
            Some(named) => add_to(named, fields),
            None => add_to(&mut self.value, fields),
        }
    }
}

fn add_to(value: &mut Value, fields: &[SchemaField]) {
    for choice in ["anyOf", "oneOf"] {
        if let Some(Value::Array(alternatives)) = value.get_mut(choice) {
            alternatives.iter_mut().for_each(|alternative| add_to(alternative, fields));
            return;
        }
    }
    let mut properties = Map::new();
    for field in fields {
        properties.insert(field.name.clone(), field.schema.value.clone());
    }
    if let Some(Value::Object(own)) = value.get_mut("properties") {
        properties.append(own);
    }
    value["properties"] = Value::Object(properties);
    let mut required: Vec<Value> =
        fields.iter().filter(|field| field.required).map(|field| json!(field.name)).collect();
    if let Some(Value::Array(own)) = value.get_mut("required") {
        required.append(own);
    }
    value["required"] = Value::Array(required);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_added_to_every_alternative() {
        let mut schema =
            Schema::raw(json!({"anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {}}]}));
        let tenant = Schema::raw(json!({"type": "string"})).named("Tenant");
        schema.add_fields(&[SchemaField { name: "tenant".to_owned(), schema: tenant, required: true }]);
        for (position, wanted) in [(0, json!(["tenant", "a"])), (1, json!(["tenant"]))] {
            let alternative = &schema.value["anyOf"][position];
            assert_eq!(alternative["required"], wanted);
            assert_eq!(alternative["properties"]["tenant"]["$ref"], "#/components/schemas/Tenant");
        }
        assert_eq!(schema.components.keys().collect::<Vec<_>>(), ["Tenant"]);
    }
}
