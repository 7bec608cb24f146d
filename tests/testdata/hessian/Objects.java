// Writes contents with classes, dates and references with Caucho's Hessian2Output (Debian's
// libhessian-java, 4.0.38), or reads what another encoder wrote:
//
//   javac -cp hessian.jar Objects.java
//   java $OPEN -cp hessian.jar:. Objects encode > caucho-4.0.38-objects.txt
//   java $OPEN -cp hessian.jar:. Objects check ours.txt
//
// with OPEN="--add-opens java.base/java.lang=ALL-UNNAMED --add-opens java.base/java.util=ALL-UNNAMED
// --add-opens java.base/java.math=ALL-UNNAMED" on Java 17 and later. Lines are "name<TAB>hex".
import com.caucho.hessian.io.Hessian2Input;
import com.caucho.hessian.io.Hessian2Output;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.Serializable;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

public class Objects {
  enum Color { RED }

  static class Car implements Serializable {
    String color;
    String model;

    Car() {}

    Car(String color, String model) {
      this.color = color;
      this.model = model;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Car && color.equals(((Car) other).color) && model.equals(((Car) other).model);
    }
  }

  static class Order implements Serializable {
    String id;
    int count;
    long total;
    double price;
    boolean paid;
    Date at;
    byte[] raw;
    Car car;
    List<String> tags;
    Map<String, Integer> more;

    @Override
    public boolean equals(Object object) {
      Order other = (Order) object;
      return id.equals(other.id) && count == other.count && total == other.total
          && price == other.price && paid == other.paid && at.equals(other.at)
          && Arrays.equals(raw, other.raw) && java.util.Objects.equals(car, other.car)
          && tags.equals(other.tags) && java.util.Objects.equals(more, other.more);
    }
  }

  static class C0 implements Serializable { int n = 0; }
  static class C1 implements Serializable { int n = 1; }
  static class C2 implements Serializable { int n = 2; }
  static class C3 implements Serializable { int n = 3; }
  static class C4 implements Serializable { int n = 4; }
  static class C5 implements Serializable { int n = 5; }
  static class C6 implements Serializable { int n = 6; }
  static class C7 implements Serializable { int n = 7; }
  static class C8 implements Serializable { int n = 8; }
  static class C9 implements Serializable { int n = 9; }
  static class C10 implements Serializable { int n = 10; }
  static class C11 implements Serializable { int n = 11; }
  static class C12 implements Serializable { int n = 12; }
  static class C13 implements Serializable { int n = 13; }
  static class C14 implements Serializable { int n = 14; }
  static class C15 implements Serializable { int n = 15; }
  static class C16 implements Serializable { int n = 16; }

  private static Order order(Car car) {
    Order order = new Order();
    order.id = "o-17";
    order.count = 3;
    order.total = 5_000_000_000L;
    order.price = 12.25;
    order.paid = true;
    order.at = new Date(894621091000L);
    order.raw = new byte[] {0, 1, -1};
    order.car = car;
    order.tags = new ArrayList<>(Arrays.asList("a", "ü"));
    return order;
  }

  private static Map<String, Object> cases() {
    Map<String, Object> out = new LinkedHashMap<>();
    out.put("date with milliseconds", new Date(894621091123L));
    out.put("date of a second", new Date(894621091000L));
    out.put("date of a minute", new Date(894621060000L));
    out.put("date before 1970", new Date(-1L));
    out.put("date of a minute before 1970", new Date(-60_000L));
    out.put("object", new Car("red", "corvette"));
    out.put("two objects of a class",
        new ArrayList<>(Arrays.asList(new Car("red", "corvette"), new Car("green", "civic"))));
    out.put("object in an object", order(new Car("red", "corvette")));
    out.put("object with null", order(null));
    out.put("seventeen classes", new ArrayList<>(Arrays.asList(
        new C0(), new C1(), new C2(), new C3(), new C4(), new C5(), new C6(), new C7(), new C8(),
        new C9(), new C10(), new C11(), new C12(), new C13(), new C14(), new C15(), new C16())));
    Map<Object, Object> numbers = new HashMap<>();
    numbers.put(1, "one");
    out.put("map with a number as key", numbers);
    // What our encoder does not write.
    Car car = new Car("red", "corvette");
    out.put("reference to an object", new ArrayList<>(Arrays.asList(car, car)));
    List<Object> inner = new ArrayList<>(Arrays.asList(1, 2));
    out.put("reference to a list", new ArrayList<>(Arrays.asList(inner, inner, car, inner)));
    out.put("reference to a map", new ArrayList<>(Arrays.asList(numbers, numbers)));
    List<Object> cycle = new ArrayList<>();
    cycle.add(cycle);
    out.put("list that contains itself", cycle);
    out.put("enum", Color.RED);
    out.put("decimal", new BigDecimal("1.50"));
    out.put("array of objects", new Car[] {car});
    Map<String, Object> linked = new LinkedHashMap<>();
    linked.put("car", car);
    out.put("typed map of objects", linked);
    return out;
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, Object> cases = cases();
    if (arguments[0].equals("encode")) {
      for (Map.Entry<String, Object> entry : cases.entrySet()) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        Hessian2Output output = new Hessian2Output(bytes);
        output.writeObject(entry.getValue());
        output.flush();
        StringBuilder hex = new StringBuilder();
        for (byte b : bytes.toByteArray()) {
          hex.append(String.format("%02x", b));
        }
        System.out.println(entry.getKey() + "\t" + hex);
      }
      return;
    }
    int good = 0;
    int count = 0;
    for (String line : Files.readAllLines(Paths.get(arguments[1]))) {
      String[] parts = line.split("\t");
      byte[] data = new byte[parts[1].length() / 2];
      for (int i = 0; i < data.length; i++) {
        data[i] = (byte) Integer.parseInt(parts[1].substring(2 * i, 2 * i + 2), 16);
      }
      Object value = new Hessian2Input(new ByteArrayInputStream(data)).readObject();
      count++;
      if (same(parts[0], value, cases.get(parts[0]))) {
        good++;
      } else {
        System.out.println("differs: " + parts[0] + ": " + value);
      }
    }
    System.out.println(good + " of " + count + " read to the same value");
  }

  private static boolean same(String name, Object value, Object expected) {
    if (name.equals("seventeen classes")) {
      List<?> list = (List<?>) value;
      return list.size() == 17 && list.get(16) instanceof C16 && ((C16) list.get(16)).n == 16;
    }
    return expected.equals(value);
  }
}
